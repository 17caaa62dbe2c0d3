"""Gets the pages of a request's text from another worker, before the request runs here.

    Generate ─▶ which pages are missing? ─▶ FetchPages to the other worker ─▶ pages land, while it computes more
                                                                           ─▶ its first token goes to the client
             ─▶ the request runs here, with whatever came; what is missing is computed

Rule 1: whatever goes wrong (the other worker is lost, slow, full or wrong) ends the fetch and fails nothing.
Rule 2: the other worker sends no more than WINDOW bytes ahead, no more than that waits to land, and at most
        MOST_FETCHES go on at a time.
Rule 3: only pages that were asked for land, in their order, with the sizes that pages have here.

`Landing` is used from the thread that computes, between steps; the rest from the event loop. Knows no streamer and no
torch.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from mesh.directory.membership import Member
from mesh.errors import MeshError
from mesh.stream import StreamReader
from services.api.messages import Failed, FetchPages, Finished, Generate, Tokens
from services.api.phases import PREFILL
from services.worker.cache.secret import name_of
from services.worker.handover.transport import WINDOW, HandoverCounts, PageTransport, Take
from services.worker.running.runner import PageMemory
from services.worker.scheduling.arrival import drafter_of
from services.worker.scheduling.planning import Planner
from services.worker.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from services.runtime.process import Context

log = logging.getLogger("specmesh.worker")

MOST_FETCHES = 16
# A request without a deadline.
LONGEST = 600.0  # seconds
# Without a word of the other worker for this long, the directory is asked whether it still works.
PATIENCE = 0.5  # seconds
# For an answer of the other worker beside the stream.
ANSWER = 5.0  # seconds

# Weight of the newest measurement.
_NEW = 0.2
# Smaller steps say little about how long a prompt takes.
_PROMPT_ROWS = 32
# Where fetching doesn't pay, one of this many requests fetches all the same, to see if it pays now.
_PROBE_EVERY = 64
# A page that is fetched takes other work of both workers, too: it has to be this much faster than computing.
MARGIN = 0.8

Push = Callable[[Tokens | Finished], None]


class _Enough(Exception):
    """No more pages are wanted."""


class Landing:
    """Pages that come from another worker: each gets a page of memory, and a name by which sequences find it. They are
    held for their request until it runs. A page that has no room is refused, and so is what comes behind it."""

    def __init__(self, planner: Planner, memory: PageMemory) -> None:
        self._planner, self._memory = planner, memory
        self._cache, self._held = planner.sharing.cache, planner.sharing.held
        self._open: set[int] = set()

    def open(self, sequence_id: int, names: list[bytes]) -> int:
        """For a request. Returns how many of its pages are here already; they are held, too."""
        self._open.add(sequence_id)
        found = self._cache.find(names)
        for page in found:
            self._held.hold(sequence_id, page)
        return len(found)

    def land(self, sequence_id: int, name: bytes, frames: Sequence[Any]) -> bool:
        """False: there is no room for it, or its request has ended."""
        if sequence_id not in self._open:
            return False
        page = self._cache.page(name)
        if page is not None:
            if not self._held.holds(sequence_id, page):
                self._held.hold(sequence_id, page)
            return True
        pages = self._planner.pages
        # As for sequences: one page for each that runs stays free, or they would be preempted at once.
        if pages.available <= len(self._planner.running):
            return False
        taken = pages.take(1)
        assert taken is not None
        self._memory.write(taken[0], frames)
        self._cache.enter(name, taken[0])
        self._held.hold(sequence_id, taken[0], share=False)
        return True

    def arrived(self, sequence_id: int) -> None:
        """Its request is with the scheduler from here on, which releases what is held when it runs or ends."""
        self._open.discard(sequence_id)

    def drop(self, sequence_id: int) -> None:
        """Its request will not run."""
        self._open.discard(sequence_id)
        self._held.release(sequence_id)


class FetchRates:
    """Seconds that a token takes to compute and to fetch, as measured; 0: unknown."""

    def __init__(self) -> None:
        self.computing = 0.0
        self.fetching = 0.0
        self._declined = 0

    def computed(self, rows: int, seconds: float) -> None:
        """A step. Called from the thread that computes."""
        if rows >= _PROMPT_ROWS and seconds > 0.0:
            self.computing = _mixed(self.computing, seconds / rows)

    def fetched(self, tokens: int, seconds: float) -> None:
        """Pages that were there already."""
        if tokens:
            self.fetching = _mixed(self.fetching, seconds / tokens)

    def fetching_pays(self) -> bool:
        """Asked once for each request. As long as one of the two is unknown it is tried, and later now and then."""
        if not self.computing or not self.fetching or self.fetching < MARGIN * self.computing:
            return True
        self._declined += 1
        return self._declined % _PROBE_EVERY == 0


def _mixed(old: float, new: float) -> float:
    return new if not old else old + _NEW * (new - old)


@dataclass(slots=True)
class Came:
    """The request to be run here, with the other worker's first token in its text if there is one, and how many of its
    prompt tokens were in a cache; None: no other worker was asked."""

    generate: Generate
    cached: int | None = None


class Fetcher:
    """All fetches of a worker."""

    def __init__(
        self,
        context: Context,
        scheduler: Scheduler,
        memory: PageMemory,
        transports: Mapping[str, PageTransport],
        counts: HandoverCounts,
        in_engine: Callable[[Callable[[], None]], None],
        tell_loop: Callable[..., None],
    ) -> None:
        """`transports` by the name in FetchPages: the best is the last. `in_engine` calls a function in the thread that
        computes."""
        self.node, self.directory, self.instance = context.node, context.directory, context.instance
        self.limits, self.sharing, self.memory = scheduler.limits, scheduler.planner.sharing, memory
        self.landing = Landing(scheduler.planner, memory)
        self.secret = name_of(scheduler.limits.secret)
        self.transports, self.counts, self.rates = transports, counts, FetchRates()
        self.in_engine, self.tell_loop = in_engine, tell_loop
        # Missing tokens for which another worker is asked.
        self._least_tokens: int = context.settings.handover_min_tokens
        self._room = asyncio.Semaphore(MOST_FETCHES)
        # Texts whose pages come, by the last name: another request with the same text waits for them.
        self._underway: dict[bytes, asyncio.Event] = {}

    async def fetch(self, generate: Generate, sequence_id: int, push: Push, left: float | None) -> Came | None:
        """None: the other worker's first token was the last, and `push` got the end."""
        lender = self._lender(generate.pages_from)
        if lender is None or generate.sampling.prompt_logprobs >= 0 or generate.pooling:
            return Came(generate)
        runs = False
        try:
            came = await self._fetch(generate, sequence_id, push, lender, LONGEST if left is None else left)
            runs = came is not None
            return came
        finally:
            self.in_engine(lambda: self.landing.arrived(sequence_id) if runs else self.landing.drop(sequence_id))

    async def _fetch(
        self, generate: Generate, sequence_id: int, push: Push, lender: Member, left: float
    ) -> Came | None:
        computes = lender.phase == PREFILL
        names, here = await self._look(generate, sequence_id, computes)
        size = self.limits.page_tokens
        missing = (len(names) - here) * size
        if missing < max(1, self._least_tokens) or not (computes or self.rates.fetching_pays()):
            return Came(generate)
        if (other := self._underway.get(names[-1])) is not None:
            await other.wait()
            return Came(generate)
        came = self._underway[names[-1]] = asyncio.Event()
        fetch = Fetch(self, generate, sequence_id, names[here:], lender, push)
        clock = asyncio.get_running_loop().time
        began = clock()
        deadline = began + left
        try:
            async with self._room:
                began = clock()
                await fetch.run(computes, max(0.0, deadline - began))
        except (MeshError, TimeoutError, ValueError) as error:
            log.info("%s: pages of %s: %s", generate.request_id, lender.instance, str(error) or type(error).__name__)
        finally:
            del self._underway[names[-1]]
            came.set()
            fetch.count(clock() - began, computes)
        if not computes:
            self.rates.fetched(fetch.landed * size, clock() - began)
        if fetch.over:
            return None
        # What the other worker had to compute wasn't found in a cache.
        cached = here * size if computes else (here + fetch.landed) * size
        return Came(fetch.continued(), max(fetch.cached, min(cached, generate.prompt_tokens)))

    def _lender(self, instance: str) -> Member | None:
        if not instance or instance == self.instance:
            return None
        return next((each for each in self.directory.members("worker") if works(each, instance)), None)

    async def _look(self, generate: Generate, sequence_id: int, computes: bool) -> tuple[list[bytes], int]:
        """The names of its pages, and how many of them are here."""
        found: asyncio.Future[tuple[list[bytes], int]] = asyncio.get_running_loop().create_future()

        def tell(names: list[bytes], here: int) -> None:
            if not found.done():
                found.set_result((names, here))

        def look() -> None:
            # The other worker computes the last token, too.
            text = [*generate.token_ids, 0] if computes else generate.token_ids
            names = self.sharing.names(text, drafter_of(generate, self.limits), generate.cache_salt)
            self.tell_loop(tell, names, self.landing.open(sequence_id, names))

        self.in_engine(look)
        return await found


def works(member: Member, instance: str, epoch: int | None = None) -> bool:
    """Whether this is that worker, and the directory has heard nothing bad of it."""
    same = member.instance == instance and (epoch is None or member.epoch == epoch)
    return same and member.state in ("ready", "draining")


class Fetch:
    """One fetch: the stream of pages from another worker, checked, on their way into this worker's pages."""

    def __init__(
        self,
        worker: Fetcher,
        generate: Generate,
        sequence_id: int,
        names: list[bytes],
        lender: Member,
        push: Push,
    ) -> None:
        self._worker, self._generate, self._sequence_id, self._names = worker, generate, sequence_id, names
        self._push, self.lender = push, lender
        self._ref = worker.node.ref(lender.endpoint, "worker")
        self._generated = len(generate.token_ids) - generate.prompt_tokens
        # Bytes that wait for the thread that computes.
        self._waiting = 0
        self._has_landed = asyncio.Event()
        self._full = False
        # By the messages of transports.
        self._takes: dict[type, Take] = {}
        self.taken = self.landed = 0
        self.tokens: list[int] = []
        self.cached = 0
        self.over = False

    async def run(self, computes: bool, left: float) -> None:
        worker = self._worker
        offered = [each for each in worker.transports.values() if each.offered(self.lender)]
        ask = FetchPages(
            request_id=self._generate.request_id,
            names=b"".join(self._names),
            layout=worker.memory.layout,
            secret=worker.secret,
            generate=self._prefill() if computes else None,
            transport=offered[-1].name,
        )
        try:
            # Its text may be ahead of its pages, so that the first token comes before the last page.
            async with self._ref.stream(ask, timeout=left, window=WINDOW) as items, asyncio.TaskGroup() as tasks:
                for each in offered:
                    self._takes |= dict.fromkeys(each.items, each.receiver(self, tasks))
                await self._take_all(items)
        except ExceptionGroup as errors:
            if not isinstance(error := errors.exceptions[0], _Enough):
                raise error from None
        await self._until_landed(0)

    def _prefill(self) -> Generate:
        """The request up to its first token. Nothing is learned from it there."""
        generate, sampling = self._generate, self._generate.sampling
        last = self._generated + 1
        return msgspec.structs.replace(
            generate,
            sampling=dataclasses.replace(sampling, max_tokens=last, min_tokens=min(sampling.min_tokens, last)),
            namespace="",
            pages_from="",
        )

    async def _take_all(self, items: StreamReader) -> None:
        while not (self._full or self.over):
            try:
                async with asyncio.timeout(PATIENCE):
                    item = await anext(items)
            except TimeoutError:
                if not self.works():
                    raise
            except StopAsyncIteration:
                for take in {*self._takes.values()}:
                    await take(None)
                return
            else:
                await self._take(item)
        raise _Enough

    async def _take(self, item: Any) -> None:
        """Raises ValueError for what a worker doesn't send."""
        if (take := self._takes.get(type(item))) is not None:
            await take(item)
        elif isinstance(item, Tokens):
            self._tell(item)
        elif isinstance(item, Finished):
            self.cached = min(item.cached_tokens, self._generate.prompt_tokens)
            if item.reason == "stop" or self._generated + len(self.tokens) >= self._generate.sampling.max_tokens:
                self.over = True
                self._push(item)
        elif isinstance(item, Failed):
            raise ValueError(f"{item.reason}: {item.message}")
        else:
            raise ValueError(f"it sent {type(item).__name__} unasked")

    def _tell(self, item: Tokens) -> None:
        known = item.seq == self._generated and item.attempt == self._generate.attempt
        if self.tokens or not known or len(item.ids) != 1 or not 0 <= item.ids[0] < self._worker.limits.vocab_size:
            raise ValueError("it sent other tokens than the first")
        self.tokens = list(item.ids)
        self._push(item)

    # For transports ---------------------------------------------------------------------------------------

    def expected(self, index: int, name: bytes) -> bytes:
        if index != self.taken or index >= len(self._names):
            raise ValueError(f"page {index} came, {self.taken} of {len(self._names)} was expected")
        if name != self._names[index]:
            raise ValueError(f"page {index} has another name")
        self.taken += 1
        return name

    def works(self) -> bool:
        there, lender = self._worker.directory.members("worker"), self.lender
        return any(works(each, lender.instance, lender.epoch) for each in there)

    async def ask(self, message: Any) -> Any:
        return await self._ref.ask(message, timeout=ANSWER)

    async def land(self, name: bytes, frames: Sequence[Any], used: Callable[[], None] | None = None) -> None:
        size = sum(map(len, frames))
        self._waiting += size
        worker = self._worker

        def land() -> None:
            worker.tell_loop(self._landed, size, worker.landing.land(self._sequence_id, name, frames), used)

        worker.in_engine(land)
        await self._until_landed(WINDOW)

    async def _until_landed(self, waiting: int) -> None:
        """No more than these bytes wait."""
        while self._waiting > waiting:
            self._has_landed.clear()
            await self._has_landed.wait()

    def _landed(self, size: int, well: bool, used: Callable[[], None] | None) -> None:
        if used is not None:
            used()
        self._waiting -= size
        self._has_landed.set()
        self._full = self._full or not well
        if well:
            counts = self._worker.counts
            self.landed += 1
            counts.read_pages += used is not None
            counts.fetched_pages += 1
            counts.fetched_bytes += size

    # What came of it --------------------------------------------------------------------------------------

    def continued(self) -> Generate:
        """What is left of the request."""
        if not self.tokens:
            return self._generate
        return msgspec.structs.replace(self._generate, token_ids=[*self._generate.token_ids, *self.tokens])

    def count(self, seconds: float, computes: bool) -> None:
        counts, missing = self._worker.counts, 0 if self.over else len(self._names) - self.landed
        counts.fetch_seconds += seconds
        if computes:
            counts.recomputed_pages += missing
        end = "full" if self._full else "partial" if missing else "complete"
        counts.ends[end if computes or self.landed else "none"] += 1
