"""How pages get from the worker that has them to the one that asked: what a transport does on both sides, and the one
that every worker has, raw frames in messages of the mesh. nixl.py is another. Used from the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mesh.codec import RawFrame
from mesh.directory.membership import Member
from services.api.messages import LentPage
from services.worker.outlet import ItemWriter

# Bytes of pages that are read at a time: about a millisecond between two steps.
BATCH_BYTES = 4 << 20
# Bytes of a fetch that may be on their way, and that may wait to land.
WINDOW = 8 << 20

# Gets an item of the stream, or None: no more will come. Raises ValueError for what a worker doesn't send.
Take = Callable[[Any], Awaitable[None]]


@dataclass(slots=True)
class HandoverCounts:
    """What a worker has handed over and been handed, for metrics. `ends` of fetches: complete, partial (the other
    worker was lost, or had no more), full (no room here), none (it was asked only for what it has, and had nothing)."""

    lent_pages: int = 0
    lent_bytes: int = 0
    fetched_pages: int = 0
    fetched_bytes: int = 0
    # Of these, read where they lay (page_transport nixl).
    read_pages: int = 0
    # From the request for pages to the last one, the other worker's computing and waiting included.
    fetch_seconds: float = 0.0
    # Pages that another worker was to compute and that didn't come.
    recomputed_pages: int = 0
    ends: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Lent:
    """Pages in order, from index `first` on: the frames of each, or the numbers of those to be read where they lie,
    which were held at `stamp`. `done`: there will be no more."""

    first: int
    pages: list[list[bytes]]
    done: bool
    places: list[int] = field(default_factory=list)
    stamp: int = 0


@dataclass(slots=True)
class LoanPages:
    """A loan, as a transport sees it. `wake` is called when `unread` has changed."""

    sequence_id: int
    names: list[bytes]
    writer: ItemWriter
    wake: Callable[[], None]
    # Pages that the other worker is to read where they lie, each with the stamp at which it was held; and how many it
    # has read.
    unread: deque[tuple[int, int]] = field(default_factory=deque)
    read: int = 0


class Fetching(Protocol):
    """A fetch, as a transport sees it."""

    lender: Member
    # How many pages have come.
    taken: int

    def expected(self, index: int, name: bytes) -> bytes:
        """The name, if it is the page that is expected next. Raises ValueError for any other."""
        ...

    def works(self) -> bool:
        """Whether the directory has heard nothing bad of the other worker."""
        ...

    async def ask(self, message: Any) -> Any:
        """The other worker. Raises MeshError."""
        ...

    async def land(self, name: bytes, frames: Sequence[Any], used: Callable[[], None] | None = None) -> None:
        """`used` is called when frames that were read have been copied, or are not needed; None: they were sent."""
        ...


class PageTransport(Protocol):
    # As FetchPages says it, and the messages that are its own.
    name: str
    items: tuple[type, ...]
    # Whether a loan's pages are given to `send` as numbers, and stay held until the other worker has read them.
    in_place: bool
    # The most pages that `send` is given.
    batch: int

    async def begin(self, loan: LoanPages) -> None: ...

    async def send(self, loan: LoanPages, lent: Lent) -> None:
        """Raises MeshError when the stream is lost."""
        ...

    def end(self, loan: LoanPages) -> None: ...

    def offered(self, lender: Member) -> bool:
        """Whether pages of this worker may come by it."""
        ...

    def receiver(self, fetch: Fetching, tasks: asyncio.TaskGroup) -> Take:
        """For the pages of one fetch. A task of it that fails ends the fetch; nothing lands when all have ended."""
        ...

    def stop(self) -> None: ...


class Frames:
    name, in_place = "", False
    items: tuple[type, ...] = (LentPage,)

    def __init__(self, frame_bytes: tuple[int, ...], counts: HandoverCounts) -> None:
        self._sizes, self._counts = [*frame_bytes], counts
        self.page_bytes = sum(frame_bytes)
        self.batch = max(1, BATCH_BYTES // self.page_bytes)

    async def begin(self, loan: LoanPages) -> None: ...

    async def send(self, loan: LoanPages, lent: Lent) -> None:
        for index, frames in enumerate(lent.pages, lent.first):
            await loan.writer.send(lent_page(index, loan.names[index], frames))
            self._counts.lent_pages += 1
            self._counts.lent_bytes += self.page_bytes

    def end(self, loan: LoanPages) -> None: ...

    def offered(self, lender: Member) -> bool:
        return True

    def receiver(self, fetch: Fetching, tasks: asyncio.TaskGroup) -> Take:
        async def take(item: LentPage | None) -> None:
            if item is not None:
                name = fetch.expected(item.index, item.name)
                if [len(frame.data) for frame in item.frames] != self._sizes:
                    raise ValueError(f"page {item.index} has frames of other sizes")
                await fetch.land(name, [bytes(frame.data) for frame in item.frames])

        return take

    def stop(self) -> None: ...


def lent_page(index: int, name: bytes, frames: list[bytes]) -> LentPage:
    return LentPage(index=index, name=name, frames=[RawFrame(frame) for frame in frames])
