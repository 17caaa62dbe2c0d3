"""A draft tree being made, a level at a time. Knows no network.

    text ─┬─ a ─┬─ c ── e        level 1: a b      level 2: c d f      level 3: e
          │     └─ d
          └─ b ─── f             frontier: the nodes of the last level that get children

A shape (services/api/tree_shape.py) says which nodes there are. Dynamic: the most probable ones, by the product of the
drafter's probabilities along the path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from services.api.draft_tree import simplified
from services.api.drafter import MAX_DRAFT_TOKENS, NO_DRAFT, Draft, DraftRequest
from services.api.tree_shape import Path, Shape

# Nodes kept of a dynamic tree, for each token of its depth.
KEPT_A_LEVEL = 4

class DraftTree:
    __slots__ = ("_paths", "_shape", "chances", "confidence", "depth", "expanded", "frontier", "parents", "request",
                 "tokens")  # fmt: skip

    def __init__(self, request: DraftRequest, shape: Shape) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.confidence: list[float] = []
        # That a node and all before it are accepted.
        self.chances: list[float] = []
        self.depth = 0
        # Nodes that get children next (-1: the text), and those that got some, parents first.
        self.frontier = [-1] if request.budget > 0 else []
        self.expanded: list[int] = []
        self._shape = shape
        self._paths: list[Path] = []

    def path_to(self, node: int) -> list[int]:
        """The tokens from the root to a node."""
        found: list[int] = []
        while node >= 0:
            found.append(self.tokens[node])
            node = self.parents[node]
        return found[::-1]

    def grow(self, tokens: list[list[int]], probs: list[list[float]]) -> None:
        """The next level: for each node of the frontier its most probable children, the first one first."""
        level: list[int] = []
        for node, own_tokens, own_probs in zip(self.frontier, tokens, probs, strict=True):
            before = self._paths[node] if node >= 0 else ()
            chance = self.chances[node] if node >= 0 else 1.0
            for rank, (token, prob) in enumerate(zip(own_tokens, own_probs, strict=True)):
                path = (*before, rank)
                if (self._shape.paths and path not in self._shape.paths) or math.isnan(prob):
                    continue
                level.append(len(self.tokens))
                self.tokens.append(token)
                self.parents.append(node)
                self.confidence.append(prob)
                self.chances.append(chance * prob)
                self._paths.append(path)
        self.expanded += [node for node in self.frontier if node >= 0]
        self.depth += 1
        self.frontier = self._next(level) if self.depth < self.request.budget else []

    def _next(self, level: list[int]) -> list[int]:
        if self._shape.paths:
            return [node for node in level if self._paths[node] in self._shape.inner]
        # A child is no more probable than its parent: below the last node that is kept nothing is.
        most = self._most()
        least = sorted(self.chances, reverse=True)[most - 1] if len(self.chances) >= most else 0.0
        worth = [node for node in level if self.chances[node] > max(least, self.request.floor)]
        return sorted(worth, key=lambda node: -self.chances[node])[: self._shape.width]

    def _most(self) -> int:
        return min(MAX_DRAFT_TOKENS, KEPT_A_LEVEL * self.request.budget)

    def made(self, source: str) -> Draft:
        """The most probable nodes, those first."""
        places = sorted(range(len(self.tokens)), key=lambda node: (-self.chances[node], node))
        if not self._shape.paths:
            places = places[: self._most()]
        if not places:
            return NO_DRAFT
        new = {-1: -1} | {place: index for index, place in enumerate(places)}
        return Draft(
            [self.tokens[place] for place in places],
            source,
            parents=simplified([new[self.parents[place]] for place in places]),
            confidence=[self.confidence[place] for place in places],
        )


def apart(
    requests: Sequence[DraftRequest],
    draft_trees: Callable[[list[DraftRequest]], list[Draft]],
    draft_chains: Callable[[list[DraftRequest]], list[Draft]],
) -> list[Draft]:
    """Drafts of both kinds, in the order of the requests."""
    drafts = [NO_DRAFT] * len(requests)
    for wanted, draft in ((True, draft_trees), (False, draft_chains)):
        places = [place for place, each in enumerate(requests) if each.tree == wanted]
        if places:
            for place, made in zip(places, draft([requests[place] for place in places]), strict=True):
                drafts[place] = made
    return drafts


def grow(trees: Sequence[DraftTree], logits: torch.Tensor, ids: torch.Tensor | None, shape: Shape) -> None:
    """Add a level to each tree. `logits` [nodes of all frontiers, the drafter's vocabulary], `ids` the target's ids of
    it."""
    probs, places = logits.float().softmax(-1).topk(min(shape.width, logits.shape[-1]), -1)
    tokens, confidence = (places if ids is None else ids[places]).tolist(), probs.tolist()
    row = 0
    for tree in trees:
        begin, row = row, row + len(tree.frontier)
        tree.grow(tokens[begin:row], confidence[begin:row])
