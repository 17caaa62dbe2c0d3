"""Gets the pages of a request's text from another worker, before the request runs here.

    Generate ─▶ which pages are missing? ─▶ FetchPages to the other worker ─▶ pages land, while it computes more
                                                                           ─▶ its first token goes to the client
             ─▶ the request runs here, with whatever came; what is missing is computed

Rule 1: whatever goes wrong (the other worker is lost, slow, full or wrong) ends the fetch and fails nothing.
Rule 2: the other worker sends no more than WINDOW bytes ahead, no more than that waits to land, and at most
        MOST_FETCHES go on at a time.
Rule 3: only pages that were asked for land, in their order, with the sizes that pages have here.

Used from the event loop. Knows no streamer and no torch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from mesh.actor import Home
from mesh.directory.membership import Member
from mesh.errors import MeshError
from services.api.messages import Failed, FetchPages, Finished, Generate, LentPage, Tokens
from services.api.phases import PREFILL
from services.worker.handover.counts import Counts, Rates
from services.worker.handover.frames import frames_in, joined
from services.worker.handover.landing import Landing
from services.worker.running.runner import PageMemory
from services.worker.scheduling.arrival import drafter_of
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.prefix import Sharing

log = logging.getLogger("specmesh.worker")

WINDOW = 8 << 20
MOST_FETCHES = 16
# Without a word of the other worker for this long, the directory is asked whether it still works.
PATIENCE = 0.5  # seconds
# A request without a deadline.
LONGEST = 600.0  # seconds

T = TypeVar("T")


class Members(Protocol):
    def members(self, role: str | None = None) -> list[Member]: ...


@dataclass(slots=True)
class Came:
    """The request to be run here, with the other worker's first token in its text if there is one, and how many of its
    prompt tokens were in a cache; None: no other worker was asked."""

    generate: Generate
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """What fetching needs of its worker. `in_engine` calls a function in the thread that computes."""

    node: Home
    directory: Members
    instance: str
    limits: Limits
    sharing: Sharing
    memory: PageMemory
    landing: Landing
    in_engine: Callable[[Callable[[], None]], None]
    tell_loop: Callable[..., None]
    secret: str
    # Missing tokens for which another worker is asked.
    least_tokens: int


class Fetching:
    def __init__(self, around: Around, counts: Counts, rates: Rates) -> None:
        self._around, self._counts, self._rates = around, counts, rates
        self._room = asyncio.Semaphore(MOST_FETCHES)
        # Texts whose pages come, by the last name: another request with the same text waits for them.
        self._underway: dict[bytes, asyncio.Event] = {}

    async def fetch(
        self, generate: Generate, stream: int, push: Callable[[Tokens | Finished], None], left: float | None
    ) -> Came | None:
        """None: the other worker's first token was the last, and `push` got the end."""
        lender = self._lender(generate.pages_from)
        if lender is None or generate.sampling.prompt_logprobs >= 0:
            return Came(generate)
        computes = lender.phase == PREFILL
        names, here = await self._look(generate, stream, computes)
        size = self._around.limits.page_tokens
        missing = (len(names) - here) * size
        if missing < max(1, self._around.least_tokens) or not (computes or self._rates.fetching_pays()):
            return Came(generate)
        if (other := self._underway.get(names[-1])) is not None:
            await other.wait()
            return Came(generate)
        came = self._underway[names[-1]] = asyncio.Event()
        fetch = _Fetch(self._around, self._counts, generate, stream, names, here, push)
        clock = asyncio.get_running_loop().time
        began = clock()
        deadline = began + (LONGEST if left is None else left)
        try:
            async with self._room:
                began = clock()
                await fetch.run(lender, computes, max(0.0, deadline - began))
        except (MeshError, TimeoutError, ValueError) as error:
            log.info("%s: pages of %s: %s", generate.request_id, lender.instance, error or type(error).__name__)
        finally:
            del self._underway[names[-1]]
            came.set()
            fetch.count(clock() - began)
        if not computes:
            self._rates.fetched(fetch.landed * size, clock() - began)
        if fetch.over:
            return None
        # What the other worker had to compute wasn't found in a cache.
        cached = here * size if computes else (here + fetch.landed) * size
        return Came(fetch.continued(), max(fetch.cached, min(cached, generate.prompt_tokens)))

    def _lender(self, instance: str) -> Member | None:
        if not instance or instance == self._around.instance:
            return None
        return next((each for each in self._around.directory.members("worker") if works(each, instance)), None)

    async def _look(self, generate: Generate, stream: int, computes: bool) -> tuple[list[bytes], int]:
        """The names of its pages, and how many of them are here."""
        around = self._around

        def look() -> tuple[list[bytes], int]:
            # The other worker computes the last token, too.
            text = [*generate.token_ids, 0] if computes else generate.token_ids
            names = around.sharing.names(text, drafter_of(generate, around.limits), generate.cache_salt)
            return names, around.landing.open(stream, names)

        return await self._ask_engine(look)

    async def _ask_engine(self, what: Callable[[], T]) -> T:
        found: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def tell(value: T) -> None:
            if not found.done():
                found.set_result(value)

        self._around.in_engine(lambda: self._around.tell_loop(tell, what()))
        return await found


def works(member: Member, instance: str, epoch: int | None = None) -> bool:
    """Whether this is that worker, and the directory has heard nothing bad of it."""
    same = member.instance == instance and (epoch is None or member.epoch == epoch)
    return same and member.state in ("ready", "draining")


class _Fetch:
    """One of them."""

    def __init__(
        self,
        around: Around,
        counts: Counts,
        generate: Generate,
        stream: int,
        names: list[bytes],
        here: int,
        push: Callable[[Tokens | Finished], None],
    ) -> None:
        self._around, self._counts, self._push = around, counts, push
        self._generate, self._stream, self._names, self._here = generate, stream, names[here:], here
        self._generated = len(generate.token_ids) - generate.prompt_tokens
        # Bytes that wait for the thread that computes.
        self._waiting = 0
        self._landed = asyncio.Event()
        self._full = False
        self.taken = self.landed = 0
        self.tokens: list[int] = []
        self.cached = 0
        self.over = False

    async def run(self, lender: Member, computes: bool, left: float) -> None:
        around = self._around
        ask = FetchPages(
            request_id=self._generate.request_id,
            names=joined(self._names),
            layout=around.memory.layout,
            secret=around.secret,
            generate=self._prefill() if computes else None,
        )
        ref = around.node.ref(lender.endpoint, "worker")
        # Its text may be ahead of its pages, so that the first token comes before the last page.
        async with ref.stream(ask, timeout=left, window=WINDOW) as items:
            while not (self._full or self.over):
                try:
                    async with asyncio.timeout(PATIENCE):
                        item = await anext(items)
                except TimeoutError:
                    known = around.directory.members("worker")
                    if not any(works(each, lender.instance, lender.epoch) for each in known):
                        raise
                    continue
                except StopAsyncIteration:
                    break
                await self._take(item)
        await self._until_landed(0)

    def _prefill(self) -> Generate:
        """The request up to its first token. Nothing is learned from it there."""
        generate, sampling = self._generate, self._generate.sampling
        last = self._generated + 1
        return msgspec.structs.replace(
            generate,
            sampling=msgspec.structs.replace(sampling, max_tokens=last, min_tokens=min(sampling.min_tokens, last)),
            namespace="",
            pages_from="",
        )

    async def _take(self, item: Any) -> None:
        """Raises ValueError for what a worker doesn't send."""
        if isinstance(item, LentPage):
            await self._land(frames_in(item, self._names, self.taken, self._around.memory.frame_bytes))
        elif isinstance(item, Tokens):
            self._tell(item)
        elif isinstance(item, Finished):
            self.cached = min(item.cached_tokens, self._generate.prompt_tokens)
            sampling = self._generate.sampling
            if item.reason == "stop" or self._generated + len(self.tokens) >= sampling.max_tokens:
                self.over = True
                self._push(item)
        elif isinstance(item, Failed):
            raise ValueError(f"{item.reason}: {item.message}")
        else:
            raise ValueError(f"it sent {type(item).__name__}")

    def _tell(self, item: Tokens) -> None:
        known = item.seq == self._generated and item.attempt == self._generate.attempt
        if self.tokens or not known or len(item.ids) != 1 or not 0 <= item.ids[0] < self._around.limits.vocab_size:
            raise ValueError("it sent other tokens than the first")
        self.tokens = list(item.ids)
        self._push(item)

    async def _land(self, frames: list[bytes]) -> None:
        size, name = sum(map(len, frames)), self._names[self.taken]
        self.taken += 1
        self._waiting += size
        around = self._around

        def land() -> None:
            around.tell_loop(self._has_landed, size, around.landing.land(self._stream, name, frames))

        around.in_engine(land)
        await self._until_landed(WINDOW)

    async def _until_landed(self, waiting: int) -> None:
        """No more than these bytes wait."""
        while self._waiting > waiting:
            self._landed.clear()
            await self._landed.wait()

    def _has_landed(self, size: int, well: bool) -> None:
        self._waiting -= size
        self._landed.set()
        if well:
            self.landed += 1
            self._counts.fetched_pages += 1
            self._counts.fetched_bytes += size
        elif not self._full:
            self._full = True

    def continued(self) -> Generate:
        """What is left of the request."""
        if not self.tokens:
            return self._generate
        return msgspec.structs.replace(self._generate, token_ids=[*self._generate.token_ids, *self.tokens])

    def count(self, seconds: float) -> None:
        self._counts.fetch_seconds += seconds
        self._counts.recomputed_pages += 0 if self.over else len(self._names) - self.landed
        whole = self.over or self.landed == len(self._names)
        self._counts.ends["full" if self._full else "complete" if whole else "partial"] += 1
