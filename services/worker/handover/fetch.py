"""One fetch: the stream of pages from another worker, checked, on their way into this worker's pages. fetching.py says
when there is one. Used from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from mesh.actor import Home
from mesh.directory.membership import Member
from services.api.messages import Failed, FetchPages, Finished, Generate, LentPage, Tokens
from services.worker.handover.counts import Counts
from services.worker.handover.frames import frames_in, joined
from services.worker.handover.landing import Landing
from services.worker.running.runner import PageMemory
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.prefix import Sharing

WINDOW = 8 << 20
# Without a word of the other worker for this long, the directory is asked whether it still works.
PATIENCE = 0.5  # seconds


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

    def count(self, seconds: float, computes: bool) -> None:
        counts, missing = self._counts, 0 if self.over else len(self._names) - self.landed
        counts.fetch_seconds += seconds
        if computes:
            counts.recomputed_pages += missing
        end = "full" if self._full else "partial" if missing else "complete"
        counts.ends[end if computes or self.landed else "none"] += 1
