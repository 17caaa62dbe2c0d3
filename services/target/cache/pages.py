"""Pages of the KV cache, counted: a page is free, or held by one sequence or by several.

    in use + free = all                       (law 5; `check` says so)

Knows page numbers only; what is stored in them is the model's.
"""

from __future__ import annotations


class Pages:
    def __init__(self, total: int) -> None:
        self.total = total
        # The last freed is the first taken: its memory is the likeliest to be in a cache.
        self._free = list(range(total - 1, -1, -1))
        self._holders = [0] * total

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def in_use(self) -> int:
        return self.total - len(self._free)

    def take(self, count: int) -> list[int] | None:
        """`count` pages with one holder each, or None when there aren't that many."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def share(self, pages: list[int]) -> None:
        """One more holder for each of these."""
        for page in pages:
            assert self._holders[page] > 0, "a free page can't be shared"
            self._holders[page] += 1

    def release(self, pages: list[int]) -> None:
        """One holder less for each; those without any are free again."""
        for page in pages:
            assert self._holders[page] > 0, "a page is released once by each holder"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free.append(page)

    def check(self) -> None:
        held = sum(1 for holders in self._holders if holders)
        assert held + len(self._free) == self.total == len(self._holders), "pages in use + free = all"
        assert len(set(self._free)) == len(self._free), "a page is free once"
