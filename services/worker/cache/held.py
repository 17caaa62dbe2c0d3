"""Pages that handovers hold, beside the sequences: on their way to another worker, or come from one for a request that
doesn't run yet.

They are in use, so that nothing evicts them. Sequences that run come first: when these find no page, all that is held
is released (`release_all`), and what is then evicted is computed again. Knows no sockets and no sequences.
"""

from __future__ import annotations

from services.worker.cache.pages import Pages


class Held:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._of: dict[int, list[int]] = {}
        # How often pages were taken away from all handovers.
        self.releases = 0

    def __bool__(self) -> bool:
        return bool(self._of)

    def hold(self, owner: int, page: int, share: bool = True) -> None:
        """`share` False: the owner took the page, and is its holder already."""
        if share:
            self._pages.share([page])
        self._of.setdefault(owner, []).append(page)

    def holds(self, owner: int, page: int) -> bool:
        return page in self._of.get(owner, ())

    def release_one(self, owner: int, page: int) -> None:
        """Fine if it isn't held any more."""
        held = self._of.get(owner)
        if held is None or page not in held:
            return
        held.remove(page)
        if not held:
            del self._of[owner]
        self._pages.release([page])

    def release(self, owner: int) -> None:
        """All of this owner's."""
        held = self._of.pop(owner, None)
        if held is not None:
            self._pages.release(held)

    def release_all(self) -> bool:
        """Whether there were any."""
        if not self._of:
            return False
        self.releases += 1
        for owner in list(self._of):
            self.release(owner)
        return True

    def check(self) -> None:
        """Where no sequence runs, what is in use is held here."""
        assert self._pages.in_use == len({page for held in self._of.values() for page in held}), "held pages are in use"
