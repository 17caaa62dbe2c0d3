"""The pages of one fetch that are read where the other worker has them.

    told ─▶ [slots] ─▶ read ─▶ "were they held until now?" ─▶ they land      as many at a time as have been told
                                       └ no: dropped

The other worker holds a page until it hears that it has been read. If its own sequences needed it meanwhile, the bytes
may be another text's, so nothing lands before the answer. Used from the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from mesh.errors import MeshError
from services.api.messages import LentMemory
from services.worker.handover.direct import Direct
from services.worker.handover.nixl_agent import Outcome

log = logging.getLogger("specmesh.worker")

# A read takes milliseconds. After this long the pages are computed, and the other worker isn't read from any more; so
# long a slot is waited for, too.
LONGEST_READ = 5.0  # seconds


class ReadFailed(ValueError):
    """The transport's fault, not the other worker's."""


class Reading:
    def __init__(
        self,
        direct: Direct,
        lent: LentMemory,
        most: int,
        still_works: Callable[[], bool],
        patience: float,
        were_held: Callable[[int, int], Awaitable[int]],
        land: Callable[[bytes, Any, Callable[[], None]], Awaitable[None]],
    ) -> None:
        """At most `most` pages are read at a time. `were_held(first, count)`: how many of the `count` pages from index
        `first` on the other worker has held until now. `land` gets a name, frames and what to call when these have
        been used."""
        direct.check(lent)
        self._direct, self._lent, self._most = direct, lent, min(most, direct.share)
        self._still_works, self._patience = still_works, patience
        self._were_held, self._land = were_held, land
        self._told: deque[tuple[bytes, int]] = deque()
        self._busy = False
        self._confirmed = 0
        self._changed = asyncio.Event()
        self.failure: Exception | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def told(self, name: bytes, page: int) -> None:
        self._told.append((name, page))
        self._busy = True
        self._changed.set()

    async def finished(self) -> None:
        """Until all that was told is on its way into pages. Raises what went wrong."""
        while self._busy and self.failure is None:
            self._changed.clear()
            await self._changed.wait()
        self.check()

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Nothing lands after this. Reads go on to their end, into slots that nobody else gets before."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while True:
                while not self._told:
                    self._changed.clear()
                    await self._changed.wait()
                await self._some()
                if not self._told:
                    self._busy = False
                    self._changed.set()
        except (MeshError, TimeoutError, ValueError) as error:
            self.failure = error
        # The fetch waits for this task: whatever ends it has to be heard.
        except Exception as error:
            log.exception("pages weren't read")
            self.failure = ReadFailed(type(error).__name__)
        finally:
            self._changed.set()

    async def _some(self) -> None:
        async with asyncio.timeout(LONGEST_READ):
            slots = await self._direct.take(min(self._most, len(self._told)))
        some = [self._told.popleft() for _ in slots]
        await self._read([page for _, page in some], slots)
        landing = 0
        try:
            held = await self._were_held(self._confirmed, len(some))
            self._confirmed += held
            for (name, _), slot in zip(some[:held], slots, strict=False):
                landing += 1
                frames = self._direct.memory.slots[slot]
                await self._land(name, frames, lambda slot=slot: self._direct.give([slot]))  # type: ignore[misc]
        finally:
            self._direct.give(slots[landing:])
        if held < len(some):
            raise ValueError("it needed pages for itself before they were read")

    async def _read(self, pages: list[int], slots: list[int]) -> None:
        """The slots are this one's again when it returns; when it raises they are taken care of."""
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def back(outcome: Outcome) -> bool:
            waits = not ended.done()
            if waits:
                ended.set_result(outcome)
            return waits

        self._direct.read(self._lent, pages, slots, back)
        try:
            async with asyncio.timeout(LONGEST_READ):
                while not (await asyncio.wait([ended], timeout=self._patience))[0]:
                    if not self._still_works():
                        raise ValueError("it was lost while its pages were read")
        except BaseException as error:
            # Where the read goes on, `back` says that nobody waits.
            if not ended.cancel() and ended.result() == "done":
                self._direct.give(slots)
            if isinstance(error, TimeoutError):
                raise ReadFailed(f"reading its pages took longer than {LONGEST_READ:g} s") from None
            raise
        if ended.result() != "done":
            raise ReadFailed(f"reading its pages was {ended.result()}")
