"""One fetch: the stream of pages from another worker, checked, on their way into this worker's pages. fetching.py says
when there is one. Used from the event loop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from mesh.actor import Home
from mesh.directory.membership import Member
from mesh.stream import StreamReader
from services.api.messages import (
    Failed,
    FetchPages,
    Finished,
    Generate,
    LentMemory,
    LentPage,
    LentPlace,
    PagesHeld,
    PagesRead,
    Tokens,
)
from services.api.page_transport import NIXL
from services.worker.handover.counts import Counts
from services.worker.handover.direct import Direct, page_in
from services.worker.handover.frames import frames_in, joined
from services.worker.handover.landing import Landing
from services.worker.handover.reading import ReadFailed, Reading
from services.worker.running.runner import PageMemory
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.prefix import Sharing

WINDOW = 8 << 20
# Without a word of the other worker for this long, the directory is asked whether it still works.
PATIENCE = 0.5  # seconds
# For the answer whether pages were held.
CONFIRM = 5.0  # seconds


class Members(Protocol):
    def members(self, role: str | None = None) -> list[Member]: ...


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
    # For pages that are read where they lie. None: all are sent.
    direct: Direct | None = None


def works(member: Member, instance: str, epoch: int | None = None) -> bool:
    """Whether this is that worker, and the directory has heard nothing bad of it."""
    same = member.instance == instance and (epoch is None or member.epoch == epoch)
    return same and member.state in ("ready", "draining")


class Fetch:

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
        self._offered = False
        self._reading: Reading | None = None
        self.taken = self.landed = 0
        self.tokens: list[int] = []
        self.cached = 0
        self.over = False

    async def run(self, lender: Member, computes: bool, left: float) -> None:
        around = self._around
        transport = around.direct.offer(lender) if around.direct is not None else ""
        self._offered = transport == NIXL
        ask = FetchPages(
            request_id=self._generate.request_id,
            names=joined(self._names),
            layout=around.memory.layout,
            secret=around.secret,
            generate=self._prefill() if computes else None,
            transport=transport,
        )
        ref = around.node.ref(lender.endpoint, "worker")
        try:
            # Its text may be ahead of its pages, so that the first token comes before the last page.
            async with ref.stream(ask, timeout=left, window=WINDOW) as items:
                await self._take_all(items, lender)
        except ReadFailed:
            if around.direct is not None:
                around.direct.distrust(lender)
            raise
        finally:
            if self._reading is not None:
                await self._reading.close()
        await self._until_landed(0)

    async def _take_all(self, items: StreamReader, lender: Member) -> None:
        while not (self._full or self.over):
            try:
                async with asyncio.timeout(PATIENCE):
                    item = await anext(items)
            except TimeoutError:
                if not self._works(lender):
                    raise
                if self._reading is not None:
                    self._reading.check()
                continue
            except StopAsyncIteration:
                break
            await self._take(item, lender)
        if self._reading is not None and not (self._full or self.over):
            await self._reading.finished()

    def _works(self, lender: Member) -> bool:
        return any(works(each, lender.instance, lender.epoch) for each in self._around.directory.members("worker"))

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

    async def _take(self, item: Any, lender: Member) -> None:
        """Raises ValueError for what a worker doesn't send."""
        if isinstance(item, LentPage):
            frames = frames_in(item, self._names, self.taken, self._around.memory.frame_bytes)
            self.taken += 1
            await self._land(item.name, frames, None)
        elif isinstance(item, LentMemory):
            self._reading = self._read_in(item, lender)
        elif isinstance(item, LentPlace) and self._reading is not None:
            page = page_in(item, self._names, self.taken)
            self.taken += 1
            self._reading.told(item.name, page)
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

    def _read_in(self, lent: LentMemory, lender: Member) -> Reading:
        direct = self._around.direct
        if direct is None or not self._offered or self._reading is not None or self.taken:
            raise ValueError("it sent LentMemory unasked")
        ref = self._around.node.ref(lender.endpoint, "worker")

        async def were_held(first: int, count: int) -> int:
            answer = await ref.ask(PagesRead(lent.agent, lent.loan, first, count), timeout=CONFIRM)
            return min(max(0, answer.count), count) if isinstance(answer, PagesHeld) else 0

        most = max(1, WINDOW // max(1, sum(self._around.memory.frame_bytes)))
        return Reading(direct, lent, most, lambda: self._works(lender), PATIENCE, were_held, self._land)

    async def _land(self, name: bytes, frames: Sequence[Any], used: Callable[[], None] | None) -> None:
        """`used` is called when frames that were read have been copied, or are not needed; None: they were sent."""
        size = sum(map(len, frames))
        self._waiting += size
        around = self._around

        def land() -> None:
            around.tell_loop(self._has_landed, size, around.landing.land(self._stream, name, frames), used)

        around.in_engine(land)
        await self._until_landed(WINDOW)

    async def _until_landed(self, waiting: int) -> None:
        """No more than these bytes wait."""
        while self._waiting > waiting:
            self._landed.clear()
            await self._landed.wait()

    def _has_landed(self, size: int, well: bool, used: Callable[[], None] | None) -> None:
        if used is not None:
            used()
        self._waiting -= size
        self._landed.set()
        if well:
            self.landed += 1
            self._counts.read_pages += used is not None
            self._counts.fetched_pages += 1
            self._counts.fetched_bytes += size
        elif not self._full:
            self._full = True

    def continued(self) -> Generate:
        """What is left of the request."""
        if not self.tokens:
            return self._generate
        return msgspec.structs.replace(self._generate, token_ids=[*self._generate.token_ids, *self.tokens])

    def count(self, seconds: float, computes: bool) -> None:
        counts, missing = self._counts, 0 if self.over else len(self._names) - self.landed
        counts.fetch_seconds += seconds
        if computes:
            counts.recomputed_pages += missing
        end = "full" if self._full else "partial" if missing else "complete"
        counts.ends[end if computes or self.landed else "none"] += 1
