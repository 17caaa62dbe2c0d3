"""Both sides of handing over pages, of a worker: it lends to others and fetches from them (docs/operate/split.md)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.api.messages import FetchPages, PagesHeld, PagesRead
from services.api.page_transport import NIXL, require_nixl
from services.api.phases import ALL
from services.api.settings import run_dir
from services.worker.handover.counts import Counts, Rates
from services.worker.handover.direct import Direct, PagePlaces
from services.worker.handover.fetch import Around
from services.worker.handover.fetching import Fetching
from services.worker.handover.frames import names_in, refusal
from services.worker.handover.landing import Landing
from services.worker.handover.lending import Lending, Lent
from services.worker.handover.loan import MOST_LOANS, Loan
from services.worker.handover.nixl_agent import Agent, NixlAgent
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


def direct_of(settings: Settings, memory: PageMemory | None) -> tuple[Agent, PagePlaces] | None:
    """What page_transport asks for. Raises NoNixl. None: pages are sent through the mesh."""
    if settings.page_transport != NIXL or memory is None:
        return None
    require_nixl(settings.page_transport)
    from services.worker.running.page_memory import TorchPages
    from services.worker.running.page_places import PagePlaces as Found

    if not isinstance(memory, TorchPages):
        log.warning("page_transport nixl: this engine's pages aren't in memory; they go through the mesh")
        return None
    if not settings.bind:
        # All workers are on this machine. UCX has no keys: its ports are open to whoever reaches them.
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
    places = Found(memory)
    regions = [(each.address, each.size, each.device) for each in places.regions]
    return NixlAgent(regions, places.on_gpu), places


class Handover:
    def __init__(
        self,
        context: Context,
        scheduler: Scheduler,
        memory: PageMemory,
        in_engine: Callable[[Callable[[], None]], None],
        tell_loop: Callable[..., None],
        direct: tuple[Agent, PagePlaces] | None = None,
    ) -> None:
        """`direct`: for reading pages where they lie."""
        self.counts, self.rates = Counts(), Rates()
        self.room = asyncio.Semaphore(MOST_LOANS)
        self.lending = Lending(scheduler.planner.sharing, memory)
        self.landing = Landing(scheduler.planner, memory)
        self._in_engine, self._tell_loop = in_engine, tell_loop
        self._layout, self._page_bytes = memory.layout, sum(memory.frame_bytes)
        self._secret = name_of(scheduler.limits.secret)
        self._direct = Direct(*direct, tell_loop) if direct is not None else None
        # Loans whose pages are read where they lie, by their number.
        self._read: dict[int, Loan] = {}
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
            direct=self._direct,
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
        computes, memory = message.generate is not None, None
        if self._direct is not None and message.transport == NIXL:
            memory = self._direct.lent_memory(stream)
        self._in_engine(lambda: self.lending.begin(stream, names, computes, memory is not None))

        def ask(most: int, came: Callable[[Lent], Any]) -> None:
            self._in_engine(lambda: self.lending.ask(stream, most, lambda lent: self._tell_loop(came, lent)))

        loan = Loan(writer, names, self._page_bytes, ask, self.counts, computes, memory)
        if memory is not None and self._direct is not None:
            self._read[stream] = loan
            self._direct.agent.lends(1)
        return loan

    def were_read(self, message: PagesRead) -> PagesHeld:
        """None of them where the loan is over, or another process's that was here before."""
        loan = self._read.get(message.loan)
        if loan is None or self._direct is None or message.agent != self._direct.agent.name:
            return PagesHeld(0)
        held, pages = loan.were_read(message.first, message.count, self.lending)
        self._in_engine(lambda: self.lending.were_read(message.loan, pages))
        return PagesHeld(held)

    def close(self, stream: int) -> None:
        """A loan is over."""
        if self._read.pop(stream, None) is not None and self._direct is not None:
            self._direct.agent.lends(-1)
        self._in_engine(lambda: self.lending.close(stream))

    def stop(self) -> None:
        """Nobody reads here any more."""
        if self._direct is not None:
            self._direct.agent.close()

    def settle(self, stream: int, runs: bool) -> None:
        """A fetch is over; `runs`: its request is given to the scheduler behind this."""
        self._in_engine(lambda: self.landing.arrived(stream) if runs else self.landing.drop(stream))
