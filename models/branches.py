"""A draft that is a tree, laid out so that each row still sees a chain. Pure functions; no numpy, no torch.

A row's bits depend on the order in which its keys and values lie. So guesses for the same place don't lie one behind
the other: what follows a token first is its branch going on, what follows it besides begins a branch of its own, in
pages of its own from there on, where the text's end and the guesses that lead to it are kept once more.

    drafted   -1  a  b  c  d  e           branch 0:  text . t a c e
    parents   -1  0  0  1  2  3           branch 1:  text . t b d        pages of its own from b's page on

Nothing else has to know of trees: attention sees one more sequence, with a table of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """`rows` that stand one behind the other, the first at depth `depth`, behind rows of the branch `parent` (-1: it
    is the one that begins with the root)."""

    rows: list[int]
    depth: int
    parent: int

    def pages(self, start: int, page_tokens: int) -> range:
        """Which pages of the text it has of its own, if the root stands at `start`."""
        first = start + self.depth
        if self.parent < 0:
            return range(0)
        return range(first // page_tokens, (first + len(self.rows) - 1) // page_tokens + 1)


def branches_of(parents: Sequence[int]) -> list[Branch]:
    """`parents`: of each drafted token the drafted token it follows, -1: the text. Row 0 is the root, row i + 1 that of
    drafted token i."""
    found = [Branch([0], 0, -1)]
    of_row = [0]
    depths = [0]
    for row, above in enumerate(parents, 1):
        parent = above + 1
        depths.append(depths[parent] + 1)
        branch = of_row[parent]
        if found[branch].rows[-1] != parent:
            found.append(Branch([], depths[row], branch))
            branch = len(found) - 1
        found[branch].rows.append(row)
        of_row.append(branch)
    return found


def own_pages(parents: Sequence[int], start: int, page_tokens: int) -> int:
    """How many pages the branches need, besides those of the sequence."""
    return sum(len(branch.pages(start, page_tokens)) for branch in branches_of(parents))
