"""Sends pages to the worker that asked for them, as its credit allows, and what its request's sequence says.

One batch of pages is read and sent, then the next is asked for, so that no more than a batch is in memory for a loan,
however slow the other worker is. Used from the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.api.messages import Tokens
from services.worker.handover.counts import Counts
from services.worker.handover.frames import lent_page
from services.worker.handover.lending import Lent
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
    ) -> None:
        """`ask` gets the most pages wanted, and calls back in the event loop."""
        self._writer, self._names, self._ask, self._counts = writer, names, ask, counts
        self._page_bytes = page_bytes
        self._most = max(1, BATCH_BYTES // page_bytes)
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
        self._ask(self._most, self._came)
        while not (done and self.ended and not self._answers):
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

    async def _send(self, lent: Lent) -> None:
        for index, frames in enumerate(lent.pages, lent.first):
            await self._writer.send(lent_page(index, self._names[index], frames))
            self._counts.lent_pages += 1
            self._counts.lent_bytes += self._page_bytes
