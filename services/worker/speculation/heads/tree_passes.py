"""Draft trees from a drafter's network: a pass for each level.

Each pass computes the tree so far again, from the text's last token on, because a forward pass holds a whole tree
(models/branches.py): a few rows more cost less than pages that keep half a tree between two passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models.branches import own_pages
from services.api.drafter import DraftRequest
from services.api.tree_shape import Shape
from services.worker.running.head import HeadModel, HeadTree
from services.worker.speculation.heads.draft_tree import DraftTree, grow


class Root:
    """The end of a text that the network has read: its last token, at `position`, with its hidden value there (what
    the network read, and what it made of it), and the logits behind it."""

    __slots__ = ("hidden", "logits", "pages", "position", "read", "token")

    def __init__(
        self,
        token: int,
        position: int,
        pages: Sequence[int],
        logits: torch.Tensor,
        read: torch.Tensor | None,
        hidden: torch.Tensor | None,
    ) -> None:
        self.token, self.position, self.pages, self.logits = token, position, pages, logits
        self.read, self.hidden = read, hidden


class _Growing:
    def __init__(self, tree: DraftTree, root: Root) -> None:
        self.tree, self.root = tree, root
        # By node, what its children read.
        self.values: dict[int, torch.Tensor] = {} if root.hidden is None else {-1: root.hidden}

    def rows(self, model: HeadModel, spare: int) -> HeadTree:
        """All nodes that have children, or get some now. `spare`: the first free page for branches."""
        tree, root = self.tree, self.root
        nodes = [*tree.expanded, *tree.frontier]
        place = {-1: -1} | {node: index for index, node in enumerate(nodes)}
        parents = [place[tree.parents[node]] for node in nodes]
        count = own_pages(parents, root.position, model.page_tokens)
        return HeadTree(
            [root.token, *(tree.tokens[node] for node in nodes)], parents, root.position, root.pages,
            range(spare, spare + count), 1 + len(tree.expanded),
        )  # fmt: skip

    def hidden(self) -> list[torch.Tensor]:
        """Of each row."""
        if self.root.read is None:
            return []
        tree = self.tree
        return [self.root.read, *(self.values[tree.parents[node]] for node in (*tree.expanded, *tree.frontier))]


def draft_trees(
    model: HeadModel, pages: range, requests: Sequence[DraftRequest], roots: Sequence[Root], shape: Shape
) -> list[DraftTree]:
    """`pages`: those for branches. A tree that needs more of them than there are grows no further."""
    trees = [DraftTree(each, shape) for each in requests]
    going = [_Growing(*pair) for pair in zip(trees, roots, strict=True) if pair[0].frontier]
    if going:
        grow([each.tree for each in going], torch.stack([each.root.logits for each in going]), model.ids, shape)
    while True:
        rows, growing = _level(model, pages, going)
        if not rows:
            return trees
        hidden = [value for each in growing for value in each.hidden()]
        output = model.forward_trees(rows, torch.stack(hidden) if hidden else None)
        if output.features is not None:
            _keep_values(growing, rows, output.features)
        grow([each.tree for each in growing], output.logits, model.ids, shape)
        going = growing


def _level(model: HeadModel, pages: range, going: list[_Growing]) -> tuple[list[HeadTree], list[_Growing]]:
    """The rows of all trees that grow by a level."""
    rows: list[HeadTree] = []
    growing: list[_Growing] = []
    spare = pages.start
    for each in going:
        if not each.tree.frontier:
            continue
        row = each.rows(model, spare)
        if row.spare.stop <= pages.stop:
            spare = row.spare.stop
            rows.append(row)
            growing.append(each)
    return rows, growing


def _keep_values(growing: list[_Growing], rows: list[HeadTree], features: torch.Tensor) -> None:
    """Of the nodes of the frontier, before the next call writes over them."""
    places: list[int] = []
    begin = 0
    for row in rows:
        places += range(begin + row.logits_from, begin + len(row.tokens))
        begin += len(row.tokens)
    values = iter(features[places])
    for each in growing:
        for node in each.tree.frontier:
            each.values[node] = next(values)
