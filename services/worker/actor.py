"""The worker process: a model behind a mailbox. Generate streams in, tokens out.

All computing happens in the thread of engine.py. This turns messages into its events, and its deliveries into
stream items. Knows no scheduling, no torch, and no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mesh.actor import Actor, Call
from mesh.errors import MeshError
from mesh.stream import StreamWriter
from mesh.supervisor import EXIT_CONFIG
from services.api.grammars import GrammarError
from services.api.messages import (
    Describe,
    Failed,
    FetchPages,
    Generate,
    ModelCard,
    PagesHeld,
    PagesRead,
)
from services.api.sampling import MAX_GRAMMAR
from services.runtime.introspection import Figures
from services.worker.cache.size import GPU_SEQUENCES
from services.worker.card import card_of, limits_for, serves_of, warn_of_lossy
from services.worker.deliveries import TOGETHER
from services.worker.engine import Engine
from services.worker.figures import figures_of
from services.worker.grammar.compiled import Grammars
from services.worker.handover.fetch import Came
from services.worker.handover.handover import Handover, secret_of
from services.worker.handover.lend import Loan
from services.worker.handover.nixl import NixlAgent, nixl_of
from services.worker.loading import load_runner, model_name
from services.worker.mail import CallBack, ProposersMoved
from services.worker.metrics import WorkerMetrics
from services.worker.outlet import Outlet, push_all
from services.worker.parallel.nodes import Nodes, nodes_of
from services.worker.running.replay import Recorder
from services.worker.running.runner import PageMemory, Runner
from services.worker.scheduling.arrival import failed
from services.worker.scheduling.events import Answer, Arrived, Cancelled, DrainBegan
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.controller import Controller
from services.worker.speculation.guard import GuardedController
from services.worker.speculation.remote.client import Link, ProposerClient
from services.worker.speculation.remote.link import LoopLink
from services.worker.speculation.remote.proposers import Proposers
from services.worker.speculation.rest import LEAST_ON_GPU, LEAST_SEQUENCES
from services.worker.timeline import Timelines

if TYPE_CHECKING:
    from services.runtime.process import Context
    from services.worker.running.page_places import PagePlaces

log = logging.getLogger("specmesh.worker")

JOIN_SECONDS = 5.0
LAST_WORDS_SECONDS = 1.0
EXIT_ENGINE = 70


class WorkerActor(Actor):
    handlers = {Describe: "describe", PagesRead: "pages_read"}  # noqa: RUF012
    streams = {Generate: "generate", FetchPages: "lend"}  # noqa: RUF012

    def __init__(
        self,
        context: Context,
        runner: Runner | None = None,
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        """`runner` replaces the one that the settings ask for."""
        self._end_process = end_process
        self._context = context
        self._settings = settings = context.settings
        # Twice what the scheduler takes: it refuses the rest itself, with a reason.
        self.max_streams = 2 * (settings.max_waiting + (settings.max_sequences or GPU_SEQUENCES))
        self._given_runner = runner
        self._metrics = WorkerMetrics(context.registry, model_name(settings))
        self._engine: Engine | None = None
        self._figures: Callable[[], Figures] = Figures
        self._card: ModelCard | None = None
        self.serves = ""
        self.phase: str = settings.phase
        self._outlets: dict[int, Outlet | Loan] = {}
        self._handover: Handover | None = None
        # Of a worker on several machines: the others.
        self._nodes: Nodes | None = None
        self._sequence_ids = itertools.count(1)
        self._secret = b""
        self._grammars: Grammars | None = None
        self._unready = "loading model"
        self._draining = False
        self._stopped = False
        self._has_loaded = asyncio.Event()
        self._emptied = asyncio.Event()
        # Endpoints and epochs of the proposers in use.
        self._proposers: dict[str, tuple[str, int]] = {}

    # Start ----------------------------------------------------------------------------------------------

    async def on_start(self) -> None:
        """Returns at once; `ready` says when the model is loaded."""
        self._loop = asyncio.get_running_loop()
        self._nodes = nodes_of(self._context) if self._settings.nnodes > 1 else None
        threading.Thread(target=self._load, name="load-model", daemon=True).start()

    def _load(self) -> None:
        try:
            self._secret = secret_of(self._settings)
            runner = self._given_runner or load_runner(self._settings, self._nodes)
            memory = runner.page_memory() if self._secret and not runner.facts.states else None
            nixl = nixl_of(self._settings, memory)
        # Whatever is wrong with a model, log it and end the process.
        except Exception as error:
            known = hasattr(error, "fix") or isinstance(error, ValueError)
            log.error("the model can't be loaded: %s", error, exc_info=not str(error))
            self._tell_loop(self._give_up, f"the model can't be loaded: {error}", EXIT_CONFIG if known else EXIT_ENGINE)
        else:
            self._tell_loop(self._loaded, runner, memory, nixl)

    def _tell_loop(self, what: Any, *arguments: Any) -> None:
        # The loop is closed if the process stopped meanwhile.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *arguments)

    def _loaded(self, runner: Runner, memory: PageMemory | None, nixl: tuple[NixlAgent, PagePlaces] | None) -> None:
        if self._stopped:
            return
        settings, facts = self._settings, runner.facts
        limits = limits_for(settings, runner, self._secret)
        warn_of_lossy(limits.verification)
        scheduler, timelines = Scheduler(limits), Timelines()
        controller = Controller(
            limits,
            Proposers(lambda: self._client(facts.vocabulary)),
            lambda answer, tokens: timelines.proposed(answer, tokens, time.monotonic()),
            time.monotonic,
            LEAST_ON_GPU if runner.elsewhere else LEAST_SEQUENCES,
        )
        drafts = GuardedController(controller)
        if memory is not None:
            self._handover = Handover(self._context, scheduler, memory, self._in_engine, self._tell_loop, nixl)
        handover = self._handover
        self._metrics.watch(scheduler, drafts, runner.counts, handover.counts if handover else None)
        self._metrics.tell_path(facts.path, facts.strict)
        self._engine = Engine(
            scheduler,
            runner,
            drafts,
            deliver=lambda answers: self._tell_loop(self._deliver, answers),
            failed=lambda message: self._tell_loop(self._give_up, message),
            now=time.monotonic,
            timelines=timelines,
            observe=self._observe if handover else self._metrics.after_step,
            record=Recorder(Path(settings.record_steps)) if settings.record_steps else None,
            lending=handover.lending if handover else None,
            # The mock's answers come in the same pieces whenever it is asked.
            together=TOGETHER if runner.elsewhere and settings.engine == "torch" else 0.0,
        )
        self._grammars = runner.grammars
        self._card = card_of(settings, limits, facts)
        self.serves = serves_of(settings, facts)
        self._figures = lambda: figures_of(scheduler, controller)
        self._engine.start()
        self._context.directory.on_change(self._follow_proposers)
        self._follow_proposers()
        self._unready = ""
        self._has_loaded.set()

    # Messages -------------------------------------------------------------------------------------------

    async def describe(self, message: Describe, call: Call) -> ModelCard:
        await self._has_loaded.wait()
        assert self._card is not None and self._engine is not None
        # An answer shows that the thread that computes is well (services/streamer/extras/probe.py).
        heard = asyncio.Event()
        self._engine.post(CallBack(lambda: self._tell_loop(heard.set)))
        await heard.wait()
        return self._card

    async def generate(self, message: Generate, call: Call, out: StreamWriter) -> None:
        if self._engine is None:
            await out.send(self._not_yet(message))
            return
        async with self._grammar_held(message) as wrong:
            if wrong:
                await out.send(failed(message, "grammar", wrong))
            else:
                await self._generate(message, call, Outlet(out))

    async def _generate(self, message: Generate, call: Call, outlet: Outlet) -> None:
        at, sequence_id = time.monotonic(), next(self._sequence_ids)
        self._outlets[sequence_id] = outlet
        came: Came | None = Came(message)
        try:
            if self._handover is not None:
                # With pages of its text that another worker has; None: that one has answered it all.
                fetch = self._handover.fetcher.fetch
                came = await fetch(message, sequence_id, outlet.push, call.deadline_left())
            if came is not None:
                self._arrive(Arrived(came.generate, sequence_id, at=at, cached=came.cached), call)
            await outlet.run()
        finally:
            self._left(sequence_id, outlet)

    async def lend(self, message: FetchPages, call: Call, out: StreamWriter) -> None:
        """Another worker gets pages, and the first token if it asks for that."""
        handover = self._handover
        refused = "it lends no pages" if handover is None else handover.refusal(message)
        async with self._grammar_held(message.generate) as wrong:
            refused = refused or wrong
            if handover is None or refused:
                await out.send(Failed(request_id=message.request_id, attempt=0, reason="invalid", message=refused))
            else:
                await self._lend(handover, message, call, out)

    async def _lend(self, handover: Handover, message: FetchPages, call: Call, out: StreamWriter) -> None:
        async with handover.room:
            sequence_id = next(self._sequence_ids)
            loan = self._outlets[sequence_id] = handover.loan(message, sequence_id, out)
            if message.generate is not None:
                self._arrive(Arrived(message.generate, sequence_id, at=time.monotonic(), lent=True), call)
            try:
                await loan.run()
            finally:
                handover.close(loan)
                self._left(sequence_id, loan)

    @contextlib.asynccontextmanager
    async def _grammar_held(self, message: Generate | None) -> AsyncIterator[str]:
        """Its grammar, if it has one, is compiled before the engine needs it, and kept until the engine doesn't any
        more; a limit of its reasoning needs the vocabulary. Gives what is wrong with it."""
        grammar, limit = ("", None) if message is None else (message.sampling.grammar, message.sampling.reasoning)
        if message is None or (not grammar and limit is None) or len(grammar) > MAX_GRAMMAR:
            # The scheduler refuses the latter.
            yield ""
            return
        grammars, engine = self._grammars, self._engine
        if grammars is None or engine is None:
            yield "this engine serves no grammars" if grammar else "this engine limits no reasoning"
            return
        try:
            if limit is not None:
                await grammars.prepare_vocabulary()
            if grammar:
                await grammars.hold(grammar, message.caller)
        except GrammarError as error:
            yield f"its grammar: {error}" if grammar else str(error)
            return
        try:
            yield ""
        finally:
            if grammar:
                # It comes behind the end of the sequence.
                engine.post(CallBack(lambda: grammars.release(grammar)))

    async def pages_read(self, message: PagesRead, call: Call) -> PagesHeld:
        return PagesHeld(0) if self._handover is None else self._handover.were_read(message)

    def _arrive(self, event: Arrived, call: Call) -> None:
        assert self._engine is not None
        self._engine.post(msgspec.structs.replace(event, deadline=time.monotonic() + call.deadline_left()))

    def _left(self, sequence_id: int, outlet: Outlet | Loan) -> None:
        assert self._engine is not None
        del self._outlets[sequence_id]
        if not outlet.ended:
            self._engine.post(Cancelled(sequence_id))
        if not self._outlets:
            self._emptied.set()

    def _not_yet(self, message: Generate) -> Failed:
        return Failed(
            request_id=message.request_id,
            attempt=message.attempt,
            reason="overloaded",
            message=self._unready,
            retryable=True,
        )

    def _deliver(self, answers: list[Answer]) -> None:
        """The answers of one step, for all its sequences."""
        assert self._engine is not None
        self._engine.answers.taken()
        push_all(self._outlets, answers)

    # The engine's surroundings ------------------------------------------------------------------------------

    def _in_engine(self, what: Callable[[], None]) -> None:
        """Call it in the engine's thread, between two steps."""
        assert self._engine is not None
        self._engine.post(CallBack(what))

    def _observe(self, rows: int, seconds: float) -> None:
        assert self._handover is not None
        self._metrics.after_step(rows, seconds)
        self._handover.fetcher.rates.computed(rows, seconds)

    def _client(self, vocabulary: str) -> ProposerClient:
        return ProposerClient(
            self._connect,
            worker=self._context.instance,
            epoch=self._context.node.epoch,
            deadline=self._settings.draft_deadline_ms / 1e3,
            now=time.monotonic,
            vocabulary=vocabulary,
        )

    def _connect(self, endpoint: str) -> Link:
        return LoopLink(self._context.node, endpoint, "proposer", self._tell_loop)

    def _follow_proposers(self) -> None:
        """The directory has changed: use the proposers that are ready now."""
        assert self._engine is not None
        members = self._context.directory.ready("proposer")
        ready = {member.instance: (member.endpoint, member.epoch) for member in members}
        if ready != self._proposers:
            self._proposers = ready
            self._engine.post(ProposersMoved(ready))

    # What the process around us asks --------------------------------------------------------------------

    def ready(self) -> list[str]:
        reasons = [self._unready] if self._unready else []
        return [*reasons, "draining"] if self._draining else reasons

    def progress_age(self) -> float:
        return 0.0 if self._engine is None else self._engine.progress_age()

    def load(self) -> int:
        return len(self._outlets)

    def figures(self) -> Figures:
        return self._figures()

    async def drain(self, timeout: float) -> None:
        self._draining = True
        if self._engine is not None:
            self._engine.post(DrainBegan())
        try:
            async with asyncio.timeout(timeout):
                while self._outlets:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            log.warning("%d requests still run at the end of the drain", len(self._outlets))

    def _give_up(self, message: str, code: int = EXIT_ENGINE) -> None:
        """The engine has failed, and so have all requests. The supervisor restarts the process if the exit code
        allows."""
        self._unready = message
        self._ending = asyncio.get_running_loop().create_task(self._end(code))

    async def _end(self, code: int) -> None:
        """Not an orderly stop: the thread that failed may hold any lock."""
        log.error("ending this process: %s", self._unready)
        await self.drain(LAST_WORDS_SECONDS)
        with contextlib.suppress(MeshError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._context.directory.stop()
        self._end_process(code)

    async def on_stop(self) -> None:
        self._stopped = True
        if self._nodes is not None:
            self._nodes.close()
        if self._engine is not None:
            self._engine.stop()
            if not await asyncio.to_thread(self._engine.join, JOIN_SECONDS):
                log.warning("the running step didn't end within %g s", JOIN_SECONDS)
        if self._handover is not None:
            await asyncio.to_thread(self._handover.stop)
