"""Both sides of handing over pages, of one worker: it lends to others and fetches from others (docs/split.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.api.messages import FetchPages
from services.api.phases import ALL
from services.api.settings import run_dir
from services.worker.handover.counts import Counts, Rates
from services.worker.handover.fetch import Around
from services.worker.handover.fetching import Fetching
from services.worker.handover.frames import names_in, refusal
from services.worker.handover.landing import Landing
from services.worker.handover.lending import Lending, Lent
from services.worker.handover.loan import MOST_LOANS, Loan
from services.worker.handover.secret import name_of, page_secret
from services.worker.outlet import Writer
from services.worker.running.runner import PageMemory
from services.worker.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.runtime.process import Context

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
    ) -> None:
        self.counts, self.rates = Counts(), Rates()
        self.room = asyncio.Semaphore(MOST_LOANS)
        self.lending = Lending(scheduler.planner.sharing, memory)
        self.landing = Landing(scheduler.planner, memory)
        self._in_engine, self._tell_loop = in_engine, tell_loop
        self._layout, self._page_bytes = memory.layout, sum(memory.frame_bytes)
        self._secret = name_of(scheduler.limits.secret)
        around = Around(
            node=context.node,
            directory=context.directory,
            instance=context.instance,
            limits=scheduler.limits,
            sharing=scheduler.planner.sharing,
            memory=memory,
            landing=self.landing,
            in_engine=in_engine,
            tell_loop=tell_loop,
            secret=self._secret,
            least_tokens=context.settings.handover_min_tokens,
        )
        self.fetch = Fetching(around, self.counts, self.rates).fetch

    def refusal(self, message: FetchPages) -> str:
        """Why nothing is lent for this; "": something may be."""
        try:
            names_in(message)
        except ValueError as error:
            return str(error)
        return refusal(message, self._layout, self._secret)

    def loan(self, message: FetchPages, stream: int, writer: Writer) -> Loan:
        """For a message that isn't refused. Its sequence, if it is to have one, arrives behind this."""
        names = names_in(message)
        self._in_engine(lambda: self.lending.begin(stream, names, message.generate is not None))

        def ask(most: int, came: Callable[[Lent], Any]) -> None:
            self._in_engine(lambda: self.lending.ask(stream, most, lambda lent: self._tell_loop(came, lent)))

        return Loan(writer, names, self._page_bytes, ask, self.counts, message.generate is not None)

    def close(self, stream: int) -> None:
        """A loan is over."""
        self._in_engine(lambda: self.lending.close(stream))

    def settle(self, stream: int, runs: bool) -> None:
        """A fetch is over; `runs`: its request is given to the scheduler behind this."""
        self._in_engine(lambda: self.landing.arrived(stream) if runs else self.landing.drop(stream))
