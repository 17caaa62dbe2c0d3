"""Pages of the KV cache, counted. A page is in one of three states:

    in use   held by one sequence or by several
    cached   held by nobody, but what lies in it is still known (kept): given away when there is no free one
    free     nothing worth keeping

    in use + cached + free = all              (law 5; `check` says so)

Knows page numbers only; what is stored in them is the model's, what it means is prefix.py's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


def _tell_nobody(page: int) -> None: ...


class Pages:
    def __init__(self, total: int, evicted: Callable[[int], None] = _tell_nobody) -> None:
        """`evicted` hears of each cached page that is about to be given to somebody else."""
        self.total = total
        self._evicted = evicted
        # The last freed is the first taken: its memory is the likeliest to be in a cache.
        self._free = list(range(total - 1, -1, -1))
        self._holders = [0] * total
        self._kept: set[int] = set()
        # Kept pages without holders, the one let go longest ago first.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """How many `take` can give."""
        return len(self._free) + len(self._cached)

    @property
    def in_use(self) -> int:
        return self.total - self.available

    def idle(self, pages: Iterable[int]) -> int:
        """How many of these have no holder."""
        return sum(not self._holders[page] for page in pages)

    def take(self, count: int) -> list[int] | None:
        """`count` pages with one holder each, or None when there aren't that many."""
        if count > self.available:
            return None
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        self._kept.discard(page)
        self._evicted(page)
        return page

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each of these, which are held or cached."""
        for page in pages:
            if self._holders[page] == 0:
                assert page in self._cached, "a free page can't be shared"
                del self._cached[page]
            self._holders[page] += 1

    def release(self, pages: list[int]) -> None:
        """One holder less for each; those without any are cached or free.

        The last page of a text is the first to be given away later: without it those before it are still of
        use, and it is of none without them.
        """
        for page in reversed(pages):
            assert self._holders[page] > 0, "a page is released once by each holder"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if page in self._kept:
                    self._cached[page] = None
                else:
                    self._free.append(page)

    def keep(self, page: int) -> None:
        """What lies in this held page is worth keeping when nobody holds it any more."""
        assert self._holders[page] > 0, "a page is filled by a holder"
        self._kept.add(page)

    def drop(self, page: int) -> None:
        """What lies in it isn't worth keeping after all. Its holders go on."""
        self._kept.discard(page)
        if page in self._cached:
            del self._cached[page]
            self._free.append(page)

    def check(self) -> None:
        held = sum(1 for holders in self._holders if holders)
        assert held + len(self._cached) + len(self._free) == self.total == len(self._holders), "in use + cached + free"
        assert len(set(self._free)) == len(self._free), "a page is free once"
        assert self._kept.isdisjoint(self._free), "what is kept isn't free"
        assert self._cached.keys() <= self._kept, "what is cached is kept"
        assert not any(self._holders[page] for page in (*self._free, *self._cached)), "who is held isn't idle"
