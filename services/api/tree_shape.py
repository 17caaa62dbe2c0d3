"""The shape of the trees that heads draft: dynamic, or a fixed list of paths as published for Medusa and
EAGLE. A path is a list of ranks: [0, 2] is the third most probable token behind the most probable first one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from services.api.drafter import MAX_DRAFT_TOKENS

WIDTH = 4

Path = tuple[int, ...]


class Shape:
    """`paths`: the nodes of a fixed tree; none: a dynamic one. `width`: children of a node that are looked at, and in a
    dynamic tree nodes of a level that get children."""

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        self.paths = frozenset(paths)
        self.inner = frozenset(path[:-1] for path in paths)
        self.width = 1 + max(path[-1] for path in paths) if paths else WIDTH


def read_shape(text: str) -> Shape:
    """The setting draft_tree_shape: "" or a list of paths, in brackets of either kind. Raises ValueError."""
    if not text.strip():
        return Shape()
    try:
        # vLLM writes tuples, with a comma behind the last one.
        found = json.loads(text.replace("(", "[").replace(")", "]").replace(" ", "").replace(",]", "]"))
    except ValueError as error:
        raise ValueError(f"{text!r} is no list of paths such as [[0], [1], [0, 0]]") from error
    if not isinstance(found, list) or not all(
        isinstance(path, list) and path and all(type(rank) is int and 0 <= rank < MAX_DRAFT_TOKENS for rank in path)
        for path in found
    ):
        raise ValueError(f"{text!r} is no list of paths such as [[0], [1], [0, 0]]")
    paths = {tuple(path) for path in found}
    if len(paths) > MAX_DRAFT_TOKENS:
        raise ValueError(f"the tree has {len(paths)} tokens, at most {MAX_DRAFT_TOKENS} are drafted")
    for path in paths:
        if path[:-1] and path[:-1] not in paths:
            raise ValueError(f"the tree has {list(path)}, but not {list(path[:-1])}")
    return Shape(sorted(paths))
