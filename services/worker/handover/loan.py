"""Sends pages to the worker that asked for them, as its credit allows, and what its request's sequence says.

One batch of pages is read and sent, then the next is asked for, so that no more than a batch is in memory for a loan,
however slow the other worker is. Or it is told where they lie, and says when it has read them; the loan goes on until
then. Used from the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from services.api.messages import LentMemory, LentPlace, Tokens
from services.worker.handover.counts import Counts
from services.worker.handover.frames import lent_page
from services.worker.handover.lending import Lending, Lent
from services.worker.outlet import Answer, Writer

# Bytes of pages that are read at a time: about a millisecond between two steps.
BATCH_BYTES = 4 << 20
# Loans at a time. Others wait, and so do their requests.
MOST_LOANS = 64


class Loan:
    def __init__(
        self,
        writer: Writer,
        names: list[bytes],
        page_bytes: int,
        ask: Callable[[int, Callable[[Lent], None]], None],
        counts: Counts,
        has_sequence: bool,
        memory: LentMemory | None = None,
    ) -> None:
        """`ask` gets the most pages wanted, and calls back in the event loop. `memory`: where they are to be read."""
        self._writer, self._names, self._ask, self._counts = writer, names, ask, counts
        self._page_bytes = page_bytes
        self._memory = memory
        self._most = max(1, BATCH_BYTES // page_bytes) if memory is None else len(names)
        # Pages that the other worker is to read, each with the stamp at which it was held.
        self._unread: deque[tuple[int, int]] = deque()
        # How many it has read.
        self._read = 0
        self._answers: list[Answer] = []
        self._lent: Lent | None = None
        self._wake = asyncio.Event()
        # Whether its sequence has ended, or there is none.
        self.ended = not has_sequence

    def push(self, answer: Answer) -> None:
        """Of its sequence: a token, then an end."""
        self._answers.append(answer)
        self.ended = not isinstance(answer, Tokens)
        self._wake.set()

    def _came(self, lent: Lent) -> None:
        self._lent = lent
        self._wake.set()

    async def run(self) -> None:
        """Until all has been sent. Raises MeshError when the stream is lost."""
        done = False
        if self._memory is not None:
            await self._writer.send(self._memory)
        self._ask(self._most, self._came)
        while not (done and self.ended and not self._answers and not self._unread):
            await self._wake.wait()
            self._wake.clear()
            while self._answers:
                await self._writer.send(self._answers.pop(0))
            if (lent := self._lent) is not None:
                self._lent = None
                await self._send(lent)
                done = lent.done
                if not done:
                    self._ask(self._most, self._came)

    def were_read(self, first: int, count: int, lending: Lending) -> tuple[int, list[int]]:
        """How many of `count` pages from index `first` on were held until now, and all these pages."""
        if first != self._read:
            return 0, []
        read = [self._unread.popleft() for _ in range(min(count, len(self._unread)))]
        self._read += len(read)
        held = 0
        while held < len(read) and read[held][1] == lending.stamp:
            held += 1
        self._counts.lent_pages += held
        self._counts.lent_bytes += held * self._page_bytes
        self._wake.set()
        return held, [page for page, _ in read]

    async def _send(self, lent: Lent) -> None:
        for index, page in enumerate(lent.places, lent.first):
            self._unread.append((page, lent.stamp))
            await self._writer.send(LentPlace(index, self._names[index], page))
        for index, frames in enumerate(lent.pages, lent.first):
            await self._writer.send(lent_page(index, self._names[index], frames))
            self._counts.lent_pages += 1
            self._counts.lent_bytes += self._page_bytes
