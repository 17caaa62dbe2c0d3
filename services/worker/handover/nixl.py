"""page_transport nixl: pages are read out of the other worker's memory by NIXL (UCX below it), instead of being sent
(docs/internals/decisions/0031). They arrive in slots:

    slot     free ─▶ read into ─▶ its page lands ─▶ free
                        └ the read failed: nobody knows if more bytes come, so it is never used again

Rule 1: only the thread of `NixlAgent` calls NIXL, which locks nothing.
Rule 2: each read ends once, with what became of it; until then its memory may be written to, whatever else happened.
Rule 3: NIXL's own thread stays off, as it polls all the time. Ours polls while something is read or lent, and sleeps
        else: connections come about, and TCP is answered, only while both sides poll.
Rule 4: nothing lands before the other worker has said that it held the page until after the read: it may have needed
        it, and then the bytes are another text's.

The agent knows no pages; all but its thread is used from the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mesh.directory.membership import Member
from mesh.errors import MeshError
from services.api.messages import LentMemory, LentPlace, PagesHeld, PagesRead
from services.api.page_transport import INSTALL, NIXL, NoNixl, require_nixl
from services.worker.handover.lend import Lending
from services.worker.handover.transport import WINDOW, Fetching, HandoverCounts, Lent, LoanPages, Take
from services.worker.running.runner import PageMemory

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.worker.running.page_places import PagePlaces

log = logging.getLogger("specmesh.worker")

# done: all bytes are here. refused: none will come. failed: it isn't known which came, nor if more will.
Outcome = Literal["done", "refused", "failed"]
# Seconds between looks while something is read or lent, and once a read has taken longer than SOON.
POLL, SLOW_POLL, SOON = 0.001, 0.02, 2.0
# Other agents whose connections are kept.
MOST_AGENTS = 64
# A read takes milliseconds. After this long the pages are computed, and the other worker isn't read from any more; so
# long a slot is waited for, too.
LONGEST_READ = 5.0  # seconds
# Between two looks whether a worker that is read from still works.
PATIENCE = 0.5  # seconds
MOST_METADATA = 1 << 20
# Numbers of pages and distances that an address of 64 bits may come from.
_MOST_PAGES, _MOST_ADDRESS = 1 << 31, 1 << 62
# Workers that are remembered for a failure.
_MOST_FAILED = 256
# Of the slots, one read takes at most this part.
_SHARES = 8

# An address here, one there, and a size.
Block = tuple[int, int, int]


def nixl_of(settings: Settings, memory: PageMemory | None) -> tuple[NixlAgent, PagePlaces] | None:
    """What page_transport asks for. Raises NoNixl. None: pages are sent through the mesh."""
    if settings.page_transport != NIXL or memory is None:
        return None
    require_nixl(settings.page_transport)
    from services.worker.running.page_memory import TorchPages
    from services.worker.running.page_places import PagePlaces

    if not isinstance(memory, TorchPages):
        log.warning("page_transport nixl: this engine's pages aren't in memory; they go through the mesh")
        return None
    if not settings.bind:
        # All workers are on this machine: listen on loopback only, because UCX doesn't authenticate connections.
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
    places = PagePlaces(memory)
    regions = [(each.address, each.size, each.device) for each in places.regions]
    return NixlAgent(regions, places.on_gpu), places


class ReadFailed(ValueError):
    """The transport's fault, not the other worker's."""


class NixlPages:
    """Implements PageTransport. A slot that is lost costs memory until the worker restarts; with half of them lost no
    page is asked for in this way any more."""

    name, in_place = NIXL, True
    items: tuple[type, ...] = (LentMemory, LentPlace)
    # All of a text.
    batch = 1 << 31

    def __init__(
        self,
        agent: NixlAgent,
        memory: PagePlaces,
        lending: Lending,
        counts: HandoverCounts,
        in_engine: Callable[[Callable[[], None]], None],
        tell_loop: Callable[..., None],
    ) -> None:
        self.agent, self.memory, self._lending, self._counts = agent, memory, lending, counts
        self._in_engine, self._tell_loop = in_engine, tell_loop
        self._page_bytes = sum(memory.sizes)
        self._loans: dict[int, LoanPages] = {}
        self._free = list(range(len(memory.slots)))
        self._left = self._all = len(memory.slots)
        self._given = asyncio.Event()
        # Workers that can't be read from, by instance and epoch.
        self._failed: set[tuple[str, int]] = set()

    def stop(self) -> None:
        self.agent.close()

    # Lending --------------------------------------------------------------------------------------------

    async def begin(self, loan: LoanPages) -> None:
        self._loans[loan.sequence_id] = loan
        self.agent.lends(1)
        await loan.writer.send(self.lent_memory(loan.sequence_id))

    def lent_memory(self, sequence_id: int) -> LentMemory:
        places = self.memory.places
        return LentMemory(self.agent.name, self.agent.metadata, sequence_id, [*places.addresses], [*places.strides])

    async def send(self, loan: LoanPages, lent: Lent) -> None:
        for index, page in enumerate(lent.places, lent.first):
            loan.unread.append((page, lent.stamp))
            await loan.writer.send(LentPlace(index, loan.names[index], page))

    def were_read(self, message: PagesRead) -> PagesHeld:
        """How many of these pages were held until now. None where the loan is over, or another process's that was here
        before."""
        loan = self._loans.get(message.sequence_id)
        if loan is None or message.agent != self.agent.name or message.first != loan.read:
            return PagesHeld(0)
        read = [loan.unread.popleft() for _ in range(min(message.count, len(loan.unread)))]
        loan.read += len(read)
        held = 0
        while held < len(read) and read[held][1] == self._lending.stamp:
            held += 1
        self._counts.lent_pages += held
        self._counts.lent_bytes += held * self._page_bytes
        self._in_engine(lambda: self._lending.were_read(message.sequence_id, [page for page, _ in read]))
        loan.wake()
        return PagesHeld(held)

    def end(self, loan: LoanPages) -> None:
        if self._loans.pop(loan.sequence_id, None) is not None:
            self.agent.lends(-1)

    # Fetching -------------------------------------------------------------------------------------------

    def offered(self, lender: Member) -> bool:
        """Not where no slot is free: they may be long in coming back."""
        well = 2 * self._left > self._all and (lender.instance, lender.epoch) not in self._failed
        return well and self.free > 0

    def receiver(self, fetch: Fetching, tasks: asyncio.TaskGroup) -> Take:
        return Reading(self, fetch, tasks).take

    @property
    def free(self) -> int:
        """Slots that no read has."""
        return len(self._free)

    @property
    def share(self) -> int:
        """Slots that one read may take, and lose."""
        return max(1, min(self._all // _SHARES, WINDOW // max(1, self._page_bytes)))

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

        self.agent.read(lent, blocks, lambda outcome: self._tell_loop(ended, outcome))

    def _lose(self, slots: Sequence[int]) -> None:
        self._left -= len(slots)
        log.warning("nixl: %d of %d slots for pages are lost until the restart", self._all - self._left, self._all)
        self._given.set()


class Reading:
    """The pages of one fetch.

    told ─▶ [slots] ─▶ read ─▶ "were they held until now?" ─▶ they land      as many at a time as have been told
                                       └ no: dropped
    """

    def __init__(self, transport: NixlPages, fetch: Fetching, tasks: asyncio.TaskGroup) -> None:
        self._transport, self._fetch, self._tasks = transport, fetch, tasks
        self._lent: LentMemory | None = None
        # Names and pages, and whether these are all.
        self._told: deque[tuple[bytes, int]] = deque()
        self._all = False
        self._changed = asyncio.Event()
        self._confirmed = 0

    async def take(self, item: LentMemory | LentPlace | None) -> None:
        self._changed.set()
        if item is None:
            self._all = True
        elif isinstance(item, LentMemory):
            if self._lent is not None or self._fetch.taken:
                raise ValueError("it sent LentMemory unasked")
            self._transport.check(item)
            self._lent = item
            self._tasks.create_task(self._run(item))
        elif self._lent is None:
            raise ValueError("it sent LentPlace unasked")
        else:
            name = self._fetch.expected(item.index, item.name)
            if not 0 <= item.page < _MOST_PAGES:
                raise ValueError(f"page {item.index} lies nowhere")
            self._told.append((name, item.page))

    async def _run(self, lent: LentMemory) -> None:
        """When it is cancelled, reads go on to their end, into slots that nobody else gets before."""
        try:
            while self._told or not self._all:
                if self._told:
                    await self._some(lent)
                else:
                    self._changed.clear()
                    await self._changed.wait()
        except Exception as error:
            if not isinstance(error, MeshError | TimeoutError | ValueError):
                # Of our own: it must not fail the request.
                log.exception("pages weren't read")
                error = ReadFailed(type(error).__name__)
            if isinstance(error, ReadFailed):
                self._transport.distrust(self._fetch.lender)
            raise error

    async def _some(self, lent: LentMemory) -> None:
        transport = self._transport
        async with asyncio.timeout(LONGEST_READ):
            slots = await transport.take(min(transport.share, len(self._told)))
        some = [self._told.popleft() for _ in slots]
        await self._read(lent, [page for _, page in some], slots)
        landing = 0
        try:
            held = await self._held(lent, len(some))
            self._confirmed += held
            for (name, _), slot in zip(some[:held], slots, strict=False):
                landing += 1
                frames = transport.memory.slots[slot]
                await self._fetch.land(name, frames, lambda slot=slot: transport.give([slot]))  # type: ignore[misc]
        finally:
            transport.give(slots[landing:])
        if held < len(some):
            raise ValueError("it needed pages for itself before they were read")

    async def _held(self, lent: LentMemory, count: int) -> int:
        """How many of the pages that were read last the other worker has held until now."""
        answer = await self._fetch.ask(PagesRead(lent.agent, lent.sequence_id, self._confirmed, count))
        return min(max(0, answer.count), count) if isinstance(answer, PagesHeld) else 0

    async def _read(self, lent: LentMemory, pages: list[int], slots: list[int]) -> None:
        """The slots are this one's again when it returns; when it raises they are taken care of."""
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def back(outcome: Outcome) -> bool:
            waits = not ended.done()
            if waits:
                ended.set_result(outcome)
            return waits

        self._transport.read(lent, pages, slots, back)
        try:
            async with asyncio.timeout(LONGEST_READ):
                while not (await asyncio.wait([ended], timeout=PATIENCE))[0]:
                    if not self._fetch.works():
                        raise ValueError("it was lost while its pages were read")
        except BaseException as error:
            # Where the read goes on, `back` says that nobody waits.
            if not ended.cancel() and ended.result() == "done":
                self._transport.give(slots)
            if isinstance(error, TimeoutError):
                raise ReadFailed(f"reading its pages took longer than {LONGEST_READ:g} s") from None
            raise
        if ended.result() != "done":
            raise ReadFailed(f"reading its pages was {ended.result()}")


# The agent --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Read:
    lent: LentMemory
    blocks: Sequence[Block]
    back: Callable[[Outcome], None]
    handle: Any = None
    began: float = field(default_factory=time.monotonic)


class NixlAgent:
    def __init__(self, regions: Sequence[Block], on_gpu: bool) -> None:
        """`regions` (address, size, device): what others may read. Raises NoNixl."""
        # Its lines go to standard output, which isn't a log.
        os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
        self._kind = "VRAM" if on_gpu else "DRAM"
        self._device = regions[0][2]
        # A start of a worker has a name of its own: nothing is read from its successor by mistake.
        self.name = f"specmesh-{secrets.token_hex(8)}"
        try:
            from nixl._api import nixl_agent, nixl_agent_config

            self._nixl = nixl_agent(self.name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
            self._nixl.register_memory([(*each, "") for each in regions], self._kind)
            self.metadata: bytes = self._nixl.get_agent_metadata()
        except ImportError as error:
            raise NoNixl(f"{INSTALL} ({error})") from None
        # NIXL's errors have no base of their own.
        except Exception as error:
            raise NoNixl(f"page_transport nixl: NIXL doesn't start: {_said(error)}") from error
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reads: list[_Read] = []
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._loans = 0
        self._thread = threading.Thread(target=self._run, name="nixl", daemon=True)
        self._thread.start()

    def read(self, lent: LentMemory, blocks: Sequence[Block], back: Callable[[Outcome], None]) -> None:
        """Of the agent that has lent it. `back` is called once, from another thread, when none of these bytes will be
        written any more, or after a failure."""
        self._jobs.put(lambda: self._begin(_Read(lent, blocks, back)))

    def lends(self, more: int) -> None:
        """So many loans more (or fewer): others may read."""

        def change() -> None:
            self._loans += more

        self._jobs.put(change)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(5.0)

    # The thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._patience())
            except queue.Empty:
                pass
            else:
                if job is None:
                    return
                job()
            if self._reads or self._loans:
                self._look()

    def _patience(self) -> float | None:
        if not self._reads and not self._loans:
            return None
        now = time.monotonic()
        return POLL if self._loans or any(now - each.began < SOON for each in self._reads) else SLOW_POLL

    def _begin(self, read: _Read) -> None:
        try:
            self._meet(read.lent)
            here, there = (
                self._nixl.get_xfer_descs([(block[side], block[2], self._device) for block in read.blocks], self._kind)
                for side in (0, 1)
            )
            read.handle = self._nixl.initialize_xfer("READ", here, there, read.lent.agent)
        except Exception as error:
            self._ended(read, "refused", error)
            return
        try:
            state = self._nixl.transfer(read.handle)
        except Exception as error:
            self._ended(read, "failed", error)
            return
        self._reads.append(read)
        self._heard(read, state)

    def _meet(self, other: LentMemory) -> None:
        """Raises ValueError for an agent that isn't who it says."""
        if self._known.get(other.agent) == other.metadata:
            self._known.move_to_end(other.agent)
            return
        if other.agent == self.name:
            raise ValueError("it has our own name")
        name = self._nixl.add_remote_agent(other.metadata)
        if (name.decode(errors="replace") if isinstance(name, bytes) else name) != other.agent:
            raise ValueError("its metadata have another name")
        self._known[other.agent] = other.metadata
        in_use = {each.lent.agent for each in self._reads} | {other.agent}
        for old in [each for each in self._known if each not in in_use][: max(0, len(self._known) - MOST_AGENTS)]:
            self._forget(old)

    def _look(self) -> None:
        for read in list(self._reads):
            try:
                state = self._nixl.check_xfer_state(read.handle)
            except Exception as error:
                self._reads.remove(read)
                self._ended(read, "failed", error)
            else:
                self._heard(read, state)
        if self._loans:
            try:
                # Whatever others sent is dropped; asking for it is what answers those who read here.
                self._nixl.get_new_notifs()
            except Exception as error:
                log.warning("nixl: %s", _said(error))

    def _heard(self, read: _Read, state: str) -> None:
        if state == "PROC":
            return
        self._reads.remove(read)
        self._ended(read, "done" if state == "DONE" else "failed", None)

    def _ended(self, read: _Read, outcome: Outcome, error: Exception | None) -> None:
        if outcome != "done":
            log.info("nixl: %s: a read was %s: %s", read.lent.agent, outcome, _said(error))
            # The next read meets it anew.
            if all(each.lent.agent != read.lent.agent for each in self._reads):
                self._forget(read.lent.agent)
        read.back(outcome)

    def _forget(self, name: str) -> None:
        if self._known.pop(name, None) is not None:
            try:
                self._nixl.remove_remote_agent(name)
            except Exception as error:
                log.info("nixl: %s: %s", name, _said(error))


def _said(error: Exception | None) -> str:
    return "" if error is None else str(error) or type(error).__name__
