"""Pages that are read out of another worker's memory (page_transport nixl), instead of being sent: what this worker has
for it, the slots in which they arrive, and who failed.

    slot     free ─▶ read into ─▶ its page lands ─▶ free
                        └ the read failed: nobody knows if more bytes come, so it is never used again

A slot that is lost costs memory until the worker restarts; with half of them lost no page is asked for in this way any
more. Used from the event loop; knows no NIXL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mesh.directory.membership import Member
from services.api.messages import LentMemory, LentPlace
from services.api.page_transport import NIXL
from services.worker.handover.nixl_agent import Agent, Block, Lender, Outcome

log = logging.getLogger("specmesh.worker")

MOST_METADATA = 1 << 20
# Numbers of pages and distances that an address of 64 bits may come from.
_MOST_PAGES, _MOST_ADDRESS = 1 << 31, 1 << 62
# Workers that are remembered for a failure.
_MOST_FAILED = 256
# Of the slots, one read takes at most this part.
_SHARES = 8


class PagePlaces(Protocol):
    """services/worker/running/page_places.py's."""

    places: Any
    sizes: list[int]
    slots: list[Any]

    def in_slot(self, slot: int) -> list[int]: ...


class Direct:
    def __init__(self, agent: Agent, memory: PagePlaces, tell_loop: Callable[..., None]) -> None:
        self.agent, self.memory, self._tell_loop = agent, memory, tell_loop
        self._free = list(range(len(memory.slots)))
        self._left = self._all = len(memory.slots)
        self._given = asyncio.Event()
        # Workers that can't be read from, by instance and epoch.
        self._failed: set[tuple[str, int]] = set()

    # Lending --------------------------------------------------------------------------------------------

    def lent_memory(self, loan: int) -> LentMemory:
        places = self.memory.places
        return LentMemory(self.agent.name, self.agent.metadata, loan, list(places.addresses), list(places.strides))

    # Fetching -------------------------------------------------------------------------------------------

    def offer(self, lender: Member) -> str:
        """What FetchPages to this worker says of it. Pages are sent where no slot is free: they may be long in coming
        back."""
        well = 2 * self._left > self._all and (lender.instance, lender.epoch) not in self._failed
        return NIXL if well and self._free else ""

    @property
    def share(self) -> int:
        """Slots that one read may take, and lose."""
        return max(1, self._all // _SHARES)

    def distrust(self, lender: Member) -> None:
        """Its pages come through the mesh from now on."""
        if len(self._failed) >= _MOST_FAILED:
            self._failed.clear()
        self._failed.add((lender.instance, lender.epoch))

    def check(self, lent: LentMemory) -> None:
        """Raises ValueError for what can't be the memory of pages like ours. Whether it may be read, NIXL knows."""
        if len(lent.metadata) > MOST_METADATA or len(lent.agent) > 256:
            raise ValueError("its metadata are too long")
        if not len(lent.addresses) == len(lent.strides) == len(self.memory.sizes):
            raise ValueError("its pages have other parts")
        if not all(0 <= each < _MOST_ADDRESS for each in (*lent.addresses, *lent.strides)):
            raise ValueError("its pages lie nowhere")

    async def take(self, most: int) -> list[int]:
        """Slots, one at least. Raises ValueError when none is left."""
        while not self._free:
            if not self._left:
                raise ValueError("no slot is left to read into")
            self._given.clear()
            await self._given.wait()
        taken, self._free = self._free[:most], self._free[most:]
        return taken

    def give(self, slots: Sequence[int]) -> None:
        self._free.extend(slots)
        self._given.set()

    def read(
        self, lent: LentMemory, pages: Sequence[int], slots: Sequence[int], back: Callable[[Outcome], bool]
    ) -> None:
        """These pages into these slots. `back` is called in the event loop; it says whether it takes the slots."""
        blocks: list[Block] = []
        for page, slot in zip(pages, slots, strict=True):
            there = (first + page * step for first, step in zip(lent.addresses, lent.strides, strict=True))
            blocks += zip(self.memory.in_slot(slot), there, self.memory.sizes, strict=True)

        def ended(outcome: Outcome) -> None:
            taken = back(outcome)
            if outcome == "failed":
                self._lose(slots)
            elif not taken or outcome != "done":
                self.give(slots)

        lender = Lender(lent.agent, lent.metadata)
        self.agent.read(lender, blocks, lambda outcome: self._tell_loop(ended, outcome))

    def _lose(self, slots: Sequence[int]) -> None:
        self._left -= len(slots)
        log.warning("nixl: %d of %d slots for pages are lost until the restart", self._all - self._left, self._all)
        self._given.set()


def page_in(place: LentPlace, names: Sequence[bytes], expected: int) -> int:
    """The page that is expected next. Raises ValueError for anything else."""
    if place.index != expected or not 0 <= place.index < len(names):
        raise ValueError(f"page {place.index} came, {expected} of {len(names)} was expected")
    if place.name != names[place.index]:
        raise ValueError(f"page {place.index} has another name")
    if not 0 <= place.page < _MOST_PAGES:
        raise ValueError(f"page {place.index} lies nowhere")
    return place.page
