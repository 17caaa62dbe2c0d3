"""Pages that come from another worker: each gets a page of memory, and a name by which sequences find it.

They are held for the request that they come for until it runs. A page that has no room is refused, and so is what
comes behind it: it is computed. Used from the thread that computes, between steps. Knows no sockets; what it is given
has been checked (frames.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.worker.running.runner import PageMemory
from services.worker.scheduling.planning import Planner


class Landing:
    def __init__(self, planner: Planner, memory: PageMemory) -> None:
        self._planner, self._memory = planner, memory
        self._cache, self._held = planner.sharing.cache, planner.sharing.held
        self._open: set[int] = set()

    def open(self, stream: int, names: list[bytes]) -> int:
        """For a request. Returns how many of its pages are here already; they are held, too."""
        self._open.add(stream)
        found = self._cache.find(names)
        for page in found:
            self._held.hold(stream, page)
        return len(found)

    def land(self, stream: int, name: bytes, frames: Sequence[Any]) -> bool:
        """False: there is no room for it, or its request has ended."""
        if stream not in self._open:
            return False
        page = self._cache.page(name)
        if page is not None:
            if not self._held.holds(stream, page):
                self._held.hold(stream, page)
            return True
        pages = self._planner.pages
        # As for sequences: one page for each that runs stays free, or they would be preempted at once.
        if pages.available <= len(self._planner.running):
            return False
        taken = pages.take(1)
        assert taken is not None
        self._memory.write(taken[0], frames)
        self._cache.enter(name, taken[0])
        self._held.hold(stream, taken[0], share=False)
        return True

    def arrived(self, stream: int) -> None:
        """Its request is with the scheduler from here on, which releases what is held when it runs or ends."""
        self._open.discard(stream)

    def drop(self, stream: int) -> None:
        """Its request will not run."""
        self._open.discard(stream)
        self._held.release(stream)
