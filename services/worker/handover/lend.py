"""Pages that other workers have asked for: which of them are there, in the order of the text, and their way out.

    names    [page][page][page][page][page]
              sent  └ held ────┘     └ not computed yet: looked for after each step, while its sequence runs
                    next             seen

A page is held from the moment it is found until it has been read, so that nothing evicts it meanwhile; if sequences
that run need it, it goes all the same, and the loan ends there: the other worker computes what it doesn't get. One
batch of pages is read and sent, then the next is asked for, so that no more than a batch is in memory for a loan,
however slow the other worker is.

`Lending` is used from the thread that computes, between steps, and `Loan` from the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.api.messages import FetchPages, Tokens
from services.worker.cache.keys import KEY_BYTES
from services.worker.handover.transport import Lent, LoanPages, PageTransport
from services.worker.outlet import Answer, ItemWriter
from services.worker.running.runner import PageMemory
from services.worker.scheduling.prefix import Sharing

# Loans at a time. Others wait, and so do their requests.
MOST_LOANS = 64
# Names of one text: as many pages as the longest context has, and no list that fills memory.
MOST_NAMES = 1 << 17

Back = Callable[[Lent], None]


@dataclass(slots=True)
class _Loan:
    names: list[bytes]
    # Whether its sequence may still compute some.
    computing: bool
    # Whether its pages are read where they lie.
    in_place: bool = False
    next: int = 0
    seen: int = 0
    # How many pages are wanted now, and who wants them.
    wanted: int = 0
    back: Back | None = None


class Lending:
    """A loan is named by a `sequence_id`, also where no sequence runs for it. Owner of what it holds is that number,
    negative: what is held for the sequence itself is released when that runs. Knows no sockets."""

    def __init__(self, sharing: Sharing, memory: PageMemory) -> None:
        self._cache, self._held = sharing.cache, sharing.held
        self._memory = memory
        self._loans: dict[int, _Loan] = {}

    def __bool__(self) -> bool:
        return bool(self._loans)

    def begin(self, sequence_id: int, names: list[bytes], computing: bool, in_place: bool = False) -> None:
        """`computing`: its sequence runs here, and may compute some of them."""
        assert sequence_id not in self._loans, "a sequence is one loan"
        self._loans[sequence_id] = _Loan(names, computing, in_place)

    def ask(self, sequence_id: int, most: int, back: Back) -> None:
        """`back` is called once, with at most that many pages, as soon as there is one or none will come."""
        found = self._loans.get(sequence_id)
        if found is None:
            back(Lent(0, [], True))
            return
        found.wanted, found.back = most, back
        self._look(sequence_id, found)

    @property
    def stamp(self) -> int:
        """Another number than before: pages that were held then may hold other texts by now. From any thread."""
        return self._held.releases

    def were_read(self, sequence_id: int, pages: list[int]) -> None:
        """They needn't be held for it any more."""
        for page in pages:
            self._held.release_one(-sequence_id, page)

    def sequence_ended(self, sequence_id: int) -> None:
        """It has computed what it will; `look` follows."""
        if (found := self._loans.get(sequence_id)) is not None:
            found.computing = False

    def look(self) -> None:
        """After a step, or the end of a sequence."""
        for sequence_id, found in list(self._loans.items()):
            self._look(sequence_id, found)

    def close(self, sequence_id: int) -> None:
        if self._loans.pop(sequence_id, None) is not None:
            self._held.release(-sequence_id)

    def _look(self, sequence_id: int, found: _Loan) -> None:
        while found.seen < len(found.names) and (page := self._cache.page(found.names[found.seen])) is not None:
            self._held.hold(-sequence_id, page)
            found.seen += 1
        if found.back is None:
            return
        first, pages = found.next, self._next_pages(found)
        gone = len(pages) < min(found.wanted, found.seen - first)
        done = gone or found.next == len(found.names) or (found.next == found.seen and not found.computing)
        if pages or done:
            back, found.back = found.back, None
            lend = self._placed if found.in_place else self._read
            back(lend(sequence_id, first, pages, done))

    def _next_pages(self, found: _Loan) -> list[int]:
        """As many as are wanted, are there and haven't been taken away."""
        pages: list[int] = []
        while len(pages) < found.wanted and found.next < found.seen:
            page = self._cache.page(found.names[found.next])
            if page is None:
                break
            pages.append(page)
            found.next += 1
        return pages

    def _read(self, sequence_id: int, first: int, pages: list[int], done: bool) -> Lent:
        # At once: where ranks have parts of them, that is one exchange.
        read = self._memory.read(pages) if pages else []
        self.were_read(sequence_id, pages)
        return Lent(first, read, done)

    def _placed(self, sequence_id: int, first: int, pages: list[int], done: bool) -> Lent:
        for page in pages:
            if not self._held.holds(-sequence_id, page):
                self._held.hold(-sequence_id, page)
        return Lent(first, [], done, pages, self.stamp)


class Loan:
    """Sends pages to the worker that asked for them, as its credit allows, and what its request's sequence says."""

    def __init__(
        self,
        message: FetchPages,
        sequence_id: int,
        writer: ItemWriter,
        transport: PageTransport,
        ask: Callable[[int, Back], None],
    ) -> None:
        """`ask` gets the most pages wanted, and calls back in the event loop."""
        self._transport, self._ask, self._writer = transport, ask, writer
        self._answers: list[Answer] = []
        self._lent: Lent | None = None
        self._wake = asyncio.Event()
        self.pages = LoanPages(sequence_id, names_in(message), writer, self._wake.set)
        # Whether its sequence has ended, or there is none.
        self.ended = message.generate is None

    def push(self, answer: Answer) -> None:
        """Of its sequence: a token, then an end."""
        self._answers.append(answer)
        self.ended = not isinstance(answer, Tokens)
        self._wake.set()

    def _came(self, lent: Lent) -> None:
        self._lent = lent
        self._wake.set()

    async def run(self) -> None:
        """Until all has been sent, and read. Raises MeshError when the stream is lost."""
        done, pages, transport = False, self.pages, self._transport
        await transport.begin(pages)
        self._ask(transport.batch, self._came)
        while not (done and self.ended and not self._answers and not pages.unread):
            await self._wake.wait()
            self._wake.clear()
            while self._answers:
                await self._writer.send(self._answers.pop(0))
            if (lent := self._lent) is not None:
                self._lent = None
                await transport.send(pages, lent)
                done = lent.done
                if not done:
                    self._ask(transport.batch, self._came)


def refusal(message: FetchPages, layout: str, secret: str) -> str:
    """Why nothing can be lent to this worker; "": nothing speaks against it."""
    whole, rest = divmod(len(message.names), KEY_BYTES)
    if rest or not 0 < whole <= MOST_NAMES:
        return f"{len(message.names)} bytes of names"
    if message.layout != layout:
        return "its pages have another layout: another model, dtype, executor or page size"
    if message.secret != secret:
        return "its pages are named with another secret: it is of another mesh, or has other keys"
    return ""


def names_in(message: FetchPages) -> list[bytes]:
    return [message.names[at : at + KEY_BYTES] for at in range(0, len(message.names), KEY_BYTES)]
