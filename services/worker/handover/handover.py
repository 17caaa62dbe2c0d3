"""Both sides of handing over pages, of a worker: it lends to others and fetches from them (docs/operate/split.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.api.messages import FetchPages, PagesHeld, PagesRead
from services.api.page_transport import NIXL
from services.api.phases import ALL
from services.api.settings import run_dir
from services.worker.cache.secret import name_of, page_secret
from services.worker.handover.fetch import Fetcher
from services.worker.handover.lend import MOST_LOANS, Lending, Loan, refusal
from services.worker.handover.nixl import NixlAgent, NixlPages
from services.worker.handover.transport import Frames, HandoverCounts, Lent, PageTransport
from services.worker.outlet import ItemWriter
from services.worker.running.runner import PageMemory
from services.worker.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.runtime.process import Context
    from services.worker.running.page_places import PagePlaces

log = logging.getLogger("specmesh.worker")


def hands_over(settings: Settings) -> bool:
    """Whether this worker may lend and fetch pages."""
    return bool(settings.prefix_cache and (settings.phase != ALL or settings.pull_pages))


def secret_of(settings: Settings) -> bytes:
    """b"" where no pages are handed over. Raises Insecure or OSError for a worker that is there to do it."""
    if not hands_over(settings):
        return b""
    try:
        return page_secret(settings.keys_dir, Path(run_dir(settings)))
    except OSError as error:
        if settings.phase != ALL:
            raise
        log.warning("no pages are fetched from other workers: %s", error)
        return b""


class Handover:
    def __init__(
        self,
        context: Context,
        scheduler: Scheduler,
        memory: PageMemory,
        in_engine: Callable[[Callable[[], None]], None],
        tell_loop: Callable[..., None],
        nixl: tuple[NixlAgent, PagePlaces] | None = None,
    ) -> None:
        """`in_engine` calls a function in the thread that computes. `nixl`: for reading pages where they lie."""
        self.memory, self.secret = memory, name_of(scheduler.limits.secret)
        self.in_engine, self.tell_loop = in_engine, tell_loop
        self.counts, self.lending = HandoverCounts(), Lending(scheduler.planner.sharing, memory)
        self.transports: dict[str, PageTransport] = {"": Frames(memory.frame_bytes, self.counts)}
        self.nixl: NixlPages | None = None
        if nixl is not None:
            self.nixl = NixlPages(*nixl, self.lending, self.counts, in_engine, tell_loop)
            self.transports[NIXL] = self.nixl
        self.fetcher = Fetcher(context, scheduler, memory, self.transports, self.counts, in_engine, tell_loop)
        # Loans at a time: others wait.
        self.room = asyncio.Semaphore(MOST_LOANS)

    def refusal(self, message: FetchPages) -> str:
        """Why nothing is lent for this; "": something may be."""
        return refusal(message, self.memory.layout, self.secret)

    def loan(self, message: FetchPages, sequence_id: int, writer: ItemWriter) -> Loan:
        """For a message that isn't refused. Its sequence, if it is to have one, arrives behind this."""
        transport = self.transports.get(message.transport, self.transports[""])

        def ask(most: int, came: Callable[[Lent], Any]) -> None:
            self.in_engine(lambda: self.lending.ask(sequence_id, most, lambda lent: self.tell_loop(came, lent)))

        loan = Loan(message, sequence_id, writer, transport, ask)
        self.in_engine(lambda: self.lending.begin(sequence_id, loan.pages.names, not loan.ended, transport.in_place))
        return loan

    def were_read(self, message: PagesRead) -> PagesHeld:
        return PagesHeld(0) if self.nixl is None else self.nixl.were_read(message)

    def close(self, loan: Loan) -> None:
        for transport in self.transports.values():
            transport.end(loan.pages)
        self.in_engine(lambda: self.lending.close(loan.pages.sequence_id))

    def stop(self) -> None:
        """Nobody reads here any more."""
        for transport in self.transports.values():
            transport.stop()
