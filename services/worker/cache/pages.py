"""Pages of the KV cache, counted. A page is in one of three states:

    in use   held by one sequence or by several
    cached   held by none, but its contents can still be found (kept): evicted when no page is free
    free     contents not kept

    in use + cached + free = all              (law 5; `check` says so)

Knows page numbers only; the model writes the pages, prefix.py knows their text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


def _tell_nobody(page: int) -> None: ...


class Pages:
    def __init__(self, total: int, evicted: Callable[[int], None] = _tell_nobody) -> None:
        """`evicted` is called with each cached page before it is reused."""
        self.total = total
        self._evicted = evicted
        # The last freed is the first taken: its memory is most likely in a CPU cache.
        self._free = list(range(total - 1, -1, -1))
        self._holders = [0] * total
        self._kept: set[int] = set()
        # Kept pages without holders, least recently released first.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """The most pages that `take` can return."""
        return len(self._free) + len(self._cached)

    @property
    def in_use(self) -> int:
        return self.total - self.available

    def idle(self, pages: Iterable[int]) -> int:
        """How many of these have no holder."""
        return sum(not self._holders[page] for page in pages)

    def alone(self, pages: Iterable[int]) -> int:
        """How many of these have one holder."""
        return sum(self._holders[page] == 1 for page in pages)

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

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each; those without any are cached or free.

        The last page of a text is evicted first: the pages before it are of use without it, but not the reverse.
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
        """Cache this held page when its last holder releases it."""
        assert self._holders[page] > 0, "a page is filled by a holder"
        self._kept.add(page)

    def drop(self, page: int) -> None:
        """Don't cache it after all. Its holders keep it."""
        self._kept.discard(page)
        if page in self._cached:
            del self._cached[page]
            self._free.append(page)

    def check(self) -> None:
        held = sum(1 for holders in self._holders if holders)
        assert held + len(self._cached) + len(self._free) == self.total == len(self._holders), "in use + cached + free"
        assert len(set(self._free)) == len(self._free), "a page is free once"
        assert self._kept.isdisjoint(self._free), "a kept page isn't free"
        assert self._cached.keys() <= self._kept, "a cached page is kept"
        assert not any(self._holders[page] for page in (*self._free, *self._cached)), "a held page isn't idle"
