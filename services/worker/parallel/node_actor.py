"""A node of a split worker that isn't the first: a member of the mesh that has some of the worker's ranks.

    ready ── JoinWorker ──▶ joined, or refused: then this process ends
      ▲                         │ RunRanks
      └── ranks have ended ◀── ranks run, as long as the worker holds the stream and none of them ends

It outlives workers: their ranks end with the stream, and it waits for the next one. nodes.py is the other side. A
process of its own, with its settings in the environment. No torch: the ranks are processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.actor import Actor, Call
from mesh.directory import DIRECTORY
from mesh.errors import Busy, Refuse
from mesh.stream import StreamWriter
from models.fingerprint import Fingerprint, fingerprint
from services.api.messages import JoinWorker, NodeJoined, RunRanks
from services.api.nodes import ANOTHER_WORKER, WORKER_NODE, address_towards, meeting_address, ranks_of, tcp_endpoint
from services.api.settings import Settings, endpoint, load_settings
from services.runtime.cpu_placement import take_place, threads_of
from services.runtime.log import configure_log
from services.runtime.process import run_role
from services.runtime.version import own_version
from services.worker.parallel.processes import RankProcesses
from services.worker.parallel.rank import Start

if TYPE_CHECKING:
    from services.runtime.process import Context

log = logging.getLogger("specmesh.node")

REDIAL = 0.5  # s


@dataclass(slots=True)
class _HeldRanks:
    """The ranks of one generation."""

    generation: str
    processes: RankProcesses
    # Streams that hold them: two for a moment, when the worker takes another.
    holders: int = 0
    why: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, why: str) -> None:
        self.why = why
        self.ended.set()


class NodeActor(Actor):
    answers = {JoinWorker: "join"}  # noqa: RUF012
    streams = {RunRanks: "run_ranks"}  # noqa: RUF012

    def __init__(self, context: Context) -> None:
        self._context, self._settings = context, context.settings
        self._model: Fingerprint | None = None
        self._running: _HeldRanks | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def on_start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._model = await asyncio.to_thread(fingerprint, Path(self._settings.model))

    def join(self, message: JoinWorker, call: Call) -> NodeJoined:
        node = self._settings.node_rank
        if message.port != meeting_address(self._settings.master_addr, self._settings.master_port)[1]:
            raise Refuse(ANOTHER_WORKER, f"node {node} is another worker's")
        if why := self._unfit(message):
            log.error("the worker refuses this node: it %s", why)
            self._spawn(self._context.node.stop_actor(WORKER_NODE))
            raise Refuse("unfit", f"node {node} {why}")
        if self._running is not None:
            raise Busy(f"node {node} has ranks of an earlier worker, which end")
        return NodeJoined(node=node)

    async def run_ranks(self, message: RunRanks, call: Call, out: StreamWriter) -> None:
        running = self._running
        if running is None:
            running = self._running = self._start(message)
        elif running.generation != message.generation:
            raise Busy("it has ranks of another worker")
        running.holders += 1
        try:
            await out.send(NodeJoined(node=self._settings.node_rank))
            await running.ended.wait()
            raise Refuse("ended", running.why)
        finally:
            running.holders -= 1
            if not running.holders:
                self._spawn(self._end(running))

    def _unfit(self, message: JoinWorker) -> str:
        settings, version = self._settings, own_version()
        if message.version != version:
            return f"runs specmesh {version}, and node 0 {message.version}"
        if message.nodes != settings.nnodes:
            return f"was started with nnodes {settings.nnodes}, and node 0 with {message.nodes}"
        if message.ranks != settings.tensor_parallel_size:
            ranks = settings.tensor_parallel_size
            return f"was started with tensor_parallel_size {ranks}, and node 0 with {message.ranks}"
        assert self._model is not None
        theirs = Fingerprint(*message.model)
        if difference := theirs.difference(self._model):
            return f"has another model: {self._model.name} beside {theirs.name}, with {difference}"
        return ""

    def _start(self, told: RunRanks) -> _HeldRanks:
        settings = self._settings
        here = settings.tensor_parallel_size // settings.nnodes
        first = settings.node_rank * here
        threads = max(1, threads_of("worker", settings.cores, settings.threads) // here)
        host = address_towards(settings.master_addr, settings.master_port)
        which = ranks_of(settings.node_rank, settings.nnodes, settings.tensor_parallel_size)
        log.info("starting %s for the worker at %s", which, told.store)

        def lost(why: str) -> None:
            self._loop.call_soon_threadsafe(running.end, why)

        running = _HeldRanks(told.generation, RankProcesses(lost))
        for number in range(here):
            running.processes.start(
                Start(
                    parent=os.getpid(),
                    rank=first + number,
                    ranks=settings.tensor_parallel_size,
                    device=number,
                    store=told.store,
                    port=told.port,
                    generation=told.generation,
                    host=host,
                    folder=settings.model,
                    executor=told.executor,
                    quantization=told.quantization,
                    gpu=told.gpu,
                    options={**told.options, "threads": threads},
                )
            )
        return running

    async def _end(self, running: _HeldRanks) -> None:
        # In a thread: a rank with much memory takes long to end.
        await asyncio.to_thread(running.processes.end)
        log.info("the ranks have ended%s", running.why and f": {running.why}")
        self._running = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # What the process around us asks --------------------------------------------------------------------

    def ready(self) -> list[str]:
        if self._context.directory.connected:
            return []
        where = endpoint(self._settings, DIRECTORY)
        return [f"no mesh is found at {where}: it isn't started yet, or it has other keys"]

    def progress_age(self) -> float:
        return 0.0

    def load(self) -> int:
        return 0 if self._running is None else len(self._running.processes.running)

    async def drain(self, timeout: float) -> None:
        """A worker without this node's ranks is over: nothing is waited for."""

    async def on_stop(self) -> None:
        if self._running is not None:
            await self._end(self._running)


def main() -> int:
    """Runs until Ctrl-C or SIGTERM. The exit code."""
    settings = load_settings({}, os.environ)
    configure_log(settings.log_level, WORKER_NODE, settings.log_format)
    try:
        # Ranks inherit the cores.
        take_place("worker", settings.cores, 0)
        if not settings.bind:
            settings = settings.replaced(bind=tcp_endpoint(_own_address(settings), 0))
    except ValueError as error:
        log.error("cannot run: %s", error)
        return 1
    except KeyboardInterrupt:
        return 0
    return run_role(WORKER_NODE, settings, NodeActor)


def _own_address(settings: Settings) -> str:
    """From which the worker's machine is reached. Waits for a name that isn't known yet, as of a pod that starts."""
    said = False
    while True:
        try:
            return address_towards(settings.master_addr, settings.master_port)
        except OSError as error:
            if not said:
                log.warning("waiting for a way to %s: %s", settings.master_addr, error.strerror or error)
            said = True
            time.sleep(REDIAL)


if __name__ == "__main__":
    sys.exit(main())
