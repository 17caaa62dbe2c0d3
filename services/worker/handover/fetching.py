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
from typing import TypeVar

from mesh.directory.membership import Member
from mesh.errors import MeshError
from services.api.messages import Finished, Generate, Tokens
from services.api.phases import PREFILL
from services.worker.handover.counts import Counts, Rates
from services.worker.handover.fetch import Around, Fetch, works
from services.worker.scheduling.arrival import drafter_of

log = logging.getLogger("specmesh.worker")

MOST_FETCHES = 16
# A request without a deadline.
LONGEST = 600.0  # seconds

T = TypeVar("T")


@dataclass(slots=True)
class Came:
    """The request to be run here, with the other worker's first token in its text if there is one, and how many of its
    prompt tokens were in a cache; None: no other worker was asked."""

    generate: Generate
    cached: int | None = None


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
        fetch = Fetch(self._around, self._counts, generate, stream, names, here, push)
        clock = asyncio.get_running_loop().time
        began = clock()
        deadline = began + (LONGEST if left is None else left)
        try:
            async with self._room:
                began = clock()
                await fetch.run(lender, computes, max(0.0, deadline - began))
        except (MeshError, TimeoutError, ValueError) as error:
            log.info("%s: pages of %s: %s", generate.request_id, lender.instance, str(error) or type(error).__name__)
        finally:
            del self._underway[names[-1]]
            came.set()
            fetch.count(clock() - began, computes)
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
