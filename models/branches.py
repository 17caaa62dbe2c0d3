"""The layout of a draft tree in which each row still reads a chain. Pure functions; no numpy, no torch.

A row's bits depend on the order of its keys and values in memory. So alternatives for one position are not stored next
to each other: the first draft token after a token continues its branch, each other one begins a branch of its own. A
branch has its own pages from its first position on; the end of the text and the draft tokens that it follows are copied
into the first of them.

    drafted   -1  a  b  c  d  e           branch 0:  text . t a c e
    parents   -1  0  0  1  2  3           branch 1:  text . t b d        pages of its own from b's page on

Attention needs no case for trees: a branch is one more sequence, with a page table of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """`rows` in a chain, the first at depth `depth`, after a row of the branch `parent` (-1: this one begins with
    the root)."""

    rows: list[int]
    depth: int
    parent: int

    def pages(self, start: int, page_tokens: int) -> range:
        """Indexes, in the page table, of the pages that are its own, for a root at position `start`."""
        first = start + self.depth
        if self.parent < 0:
            return range(0)
        return range(first // page_tokens, (first + len(self.rows) - 1) // page_tokens + 1)


def branches_of(parents: Sequence[int]) -> list[Branch]:
    """`parents`: for each draft token the index of the draft token it follows, -1: the text. Row 0 is the root, row
    i + 1 that of draft token i."""
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
    """The number of pages that the branches need in addition to the sequence's."""
    return sum(len(branch.pages(start, page_tokens)) for branch in branches_of(parents))
