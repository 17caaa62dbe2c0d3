"""One role's process: node, directory, health server and signals around an actor. Knows nothing of what the actor does.

    starting ──spawned, nothing missing──▶ ready ◀──▶ unready (stuck, or it misses someone)
        │                                    │
        │ ending.py's signals                │ ending.py's signals      fenced, from anywhere
        ▼                                    ▼                              ▼
      exit 0                       draining ──drained──▶ exit 0          exit 75, or a new epoch

A process is fenced when others have taken it for lost and given its work away. A streamer then takes a new epoch in
place: all of its calls end, and its requests make their next attempt. Other roles end with 75, which says that nothing
is wrong, and are started again: their state is about calls that no longer exist. Either way the next epoch is larger
than the one that is fenced, whatever the clock says (mesh/epoch.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from prometheus_client import CollectorRegistry, ProcessCollector

from mesh.actor import Actor
from mesh.clock import Clock, SystemClock
from mesh.codec import Codec
from mesh.directory import DIRECTORY, DIRECTORY_KINDS, DirectoryActor, DirectoryClient, Member
from mesh.directory.membership import MAX_SERVES, State
from mesh.epoch import next_epoch
from mesh.errors import MeshError
from mesh.metrics import BusMetrics
from mesh.node import Node
from mesh.security import FolderSecurity, load_security
from mesh.supervisor import EXIT_CONFIG, EXIT_FENCED
from mesh.transport.zmq import ZmqTransport
from services.api.hosts import AllowedHosts, http_url
from services.api.messages import KINDS
from services.api.page_transport import require_nixl
from services.api.settings import NO_PORT, Settings, directory_of, endpoint, instance_name, metrics_port, run_dir
from services.runtime import output
from services.runtime.cpu_placement import take_place
from services.runtime.ending import ending_signals
from services.runtime.environment import compute_environment
from services.runtime.health_server import HealthServer
from services.runtime.introspection import INTROSPECTION, Figures, Introspection
from services.runtime.log import configure_log
from services.runtime.own_folder import make_own_folder
from services.runtime.preload import WarmParent, tell_parent
from services.runtime.process_metrics import ProcessMetrics
from services.runtime.roles import RENEWED_IN_PLACE

log = logging.getLogger(__name__)

# How often the actor is asked how it is. What changes is announced at once, so this bounds how late others know.
LOOK_EVERY = 0.05  # s
# What an actor may take beyond its drain timeout before it is stopped all the same.
DRAIN_GRACE = 1.0  # s
LEAVE_TIMEOUT = 2.0  # s
# An on_stop that hangs is left behind after this.
CLOSE_TIMEOUT = 10.0  # s
MAX_REASONS = 8
# Objects made and not freed before the collector looks at the youngest.
YOUNG_OBJECTS = 20_000
# Roles that are forked from a parent that has loaded everything: what they bring is missed for as long as they are
# gone, and little of them can't be loaded twice. For each, its module that loads what takes longest.
KEPT_WARM = {"proposer": "services.proposer.fast.compiling"}
# Two processes of one name must not take new epochs in turns.
RENEW_AT_MOST_EVERY = 10.0  # s


@dataclass(frozen=True, slots=True)
class Context:
    """What an actor is given of the process it lives in."""

    settings: Settings
    role: str
    instance: str
    node: Node
    directory: DirectoryClient
    registry: CollectorRegistry
    clock: Clock


class RoleActor(Protocol):
    """What the process asks of its actor, besides being a `mesh.actor.Actor`."""

    def ready(self) -> list[str]:
        """Why it isn't ready; empty: it is."""
        ...

    def progress_age(self) -> float:
        """Seconds since the last completed piece of work while work waits; 0.0 when idle."""
        ...

    def load(self) -> int: ...

    async def drain(self, timeout: float) -> None:
        """Stop taking new work and wait for the running work."""
        ...


def mesh_codec() -> Codec:
    """All kinds of messages of the mesh."""
    return Codec({**KINDS, **DIRECTORY_KINDS})


class RoleProcess:
    """Runs one actor until `stop` or a fence. `actor_class` is found by the role's name unless given. `known_as`: the
    process id by which it is known to who started it, if that isn't its own."""

    def __init__(
        self, role: str, settings: Settings, actor_class: type[Actor] | None = None, known_as: int | None = None
    ) -> None:
        self.role = role
        self._known_as = known_as or os.getpid()
        self.settings = settings
        self.instance = instance_name(settings, role)
        self.registry = CollectorRegistry()
        self._actor_class = actor_class
        self._clock = SystemClock()
        self._actor: RoleActor | None = None
        self._was_ready = False
        self._draining = False
        self._stop = asyncio.Event()
        self._cut = asyncio.Event()  # fenced, or told to stop twice
        self._renewed_at = -RENEW_AT_MOST_EVERY
        self._sockets: list[SocketFile] = []
        self._security = security_of(settings, role, self.instance)
        self._run_dir = run_dir(settings)
        make_run_dir(self._run_dir)
        self.node = self._node(self.instance, BusMetrics(self.registry))
        self._directory_node = self._node(DIRECTORY) if settings.host_directory else None
        self.directory = DirectoryClient(self.node, directory_of(settings), self.member)
        self.directory.on_fenced(self._fence)
        self.node.on_stale(lambda newest: self._fence(newest, self._is_replaced()))
        ProcessMetrics(self.registry, self, self.directory)
        self.health_server = HealthServer(
            self.registry,
            self.reasons,
            about={"role": role, "instance": self.instance},
            vllm_metric_names=settings.vllm_metric_names,
            hosts=AllowedHosts(settings.allowed_hosts, settings.metrics_host),
        )

    def _node(self, name: str, metrics: BusMetrics | None = None) -> Node:
        transport, epoch = ZmqTransport(security=self._security), next_epoch(self._run_dir)
        return Node(transport, mesh_codec(), name=name, clock=self._clock, metrics=metrics, epoch=epoch)

    def stop(self) -> None:
        """Drain and end; said twice, end without waiting for running work."""
        if self._stop.is_set():
            self._cut.set()
        self._stop.set()

    def _fence(self, fence: int, replaced: bool) -> None:
        """Our epoch counts as dead, and the next one has to exceed `fence`."""
        if fence < self.node.epoch:
            return  # said of an epoch we have left already
        try:
            epoch = next_epoch(self._run_dir, fence + 1)
        except OSError as error:
            log.error("no new epoch: %s", error)
            replaced = True
        now = self._clock.now()
        if replaced or self.role not in RENEWED_IN_PLACE or now - self._renewed_at < RENEW_AT_MOST_EVERY:
            self._cut.set()
            return
        self._renewed_at = now
        log.warning("others took this process for lost: going on with a new epoch")
        self.node.take_epoch(epoch)
        self.directory.announce_now()

    def _is_replaced(self) -> bool:
        own = self.role, self.instance
        return any(each.key == own and each.epoch > self.node.epoch for each in self.directory.members())

    async def run(self) -> int:
        """The exit code. Raises what keeps the process from starting."""
        ProcessCollector(registry=self.registry)
        try:
            await self._open()
            if not await self._start_actor():
                return 0
            log.info("%s at %s, metrics at port %d", self.instance, self.node.endpoint, self.health_server.port)
            await self._watch()
            if self._stop.is_set():
                await self._drain()
                return 0
            if self.role not in self.node.actors:
                log.error("the %s actor is gone: ending, to be started again", self.role)
                return 1
            log.warning("others took this process for lost: ending, to be started again")
            return EXIT_FENCED
        finally:
            await self._close()

    # What is announced -----------------------------------------------------------------------------------------------

    def reasons(self) -> list[str]:
        """Why this process isn't ready."""
        if self._draining:
            return ["draining"]
        if self._actor is None:
            return ["starting"]
        reasons = [reason[:300] for reason in self._actor.ready()[:MAX_REASONS]]
        if self._actor.progress_age() >= self.settings.stale_after:
            reasons.append(f"work waits and none was completed for {self.settings.stale_after:g} s")
        return reasons[-MAX_REASONS:]

    def member(self) -> Member:
        reasons = self.reasons()
        state: State = "draining" if self._draining else "ready"
        if reasons and not self._draining:
            state = "unready" if self._was_ready else "starting"
        self._was_ready = self._was_ready or state == "ready"
        return Member(
            self.role,
            self.instance,
            self.settings.advertise or self.node.endpoint,
            self.node.epoch,
            state,
            self._actor.progress_age() if self._actor else 0.0,
            max(0, self._actor.load()) if self._actor else 0,
            reasons,
            http_url(self.settings.metrics_host, self.health_server.port) if self.health_server.port else "",
            self._known_as,
            str(getattr(self._actor, "serves", ""))[:MAX_SERVES],
            str(getattr(self._actor, "phase", "")),
        )

    def figures(self) -> Figures:
        """The figures for introspection; none while the actor is being started."""
        show = getattr(self._actor, "figures", None)
        return show() if show is not None else Figures()

    # A life, in order -------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Everything but the actor, so that a process that is loading can be seen to live."""
        port = metrics_port(self.settings, self.role)
        if port != NO_PORT:
            await self.health_server.start(self.settings.metrics_host, port)
        if self._directory_node is not None:
            await self._directory_node.start(endpoint(self.settings, DIRECTORY))
            self._sockets.append(SocketFile(self._directory_node.endpoint))
            await self._directory_node.spawn(DirectoryActor(stale_after=self.settings.stale_after), DIRECTORY)
        await self.node.start(endpoint(self.settings, self.role, self.instance))
        window = Introspection(
            self.figures, metrics=self.health_server.own_metrics, demo=self.settings.demo, clock=self._clock
        )
        await self.node.spawn(window, INTROSPECTION)
        self._sockets.append(SocketFile(self.node.endpoint))
        await self.directory.start()

    async def _start_actor(self) -> bool:
        """False when told to stop meanwhile."""
        starting = asyncio.ensure_future(self._spawn())
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return False
        self._actor = cast(RoleActor, starting.result())
        return True

    async def _spawn(self) -> Actor:
        context = Context(
            self.settings,
            self.role,
            self.instance,
            self.node,
            self.directory,
            self.registry,
            self._clock,
        )
        # Importing torch takes seconds; in a thread, the heartbeat goes on meanwhile.
        actor_class = self._actor_class or await asyncio.to_thread(_find_actor, self.role)
        actor = cast(Any, actor_class)(context)
        await self.node.spawn(actor, self.role)
        return cast(Actor, actor)

    async def _watch(self) -> None:
        """Until it is stopped or fenced, or has no actor any more. A change of state is announced at once."""
        before: tuple[str, ...] | None = None
        while not (self._stop.is_set() or self._cut.is_set()) and self.role in self.node.actors:
            now = tuple(self.reasons())
            if now != before:
                log.info("ready" if not now else "not ready: %s", *(("; ".join(now),) if now else ()))
                self.directory.announce_now()
                before = now
            await asyncio.sleep(LOOK_EVERY)

    async def _drain(self) -> None:
        assert self._actor is not None
        timeout = self.settings.drain_timeout
        log.info("draining for at most %g s", timeout)
        self._draining = True
        self.directory.announce_now()
        draining = asyncio.ensure_future(self._actor.drain(timeout))
        cut = asyncio.ensure_future(self._cut.wait())
        await asyncio.wait({draining, cut}, timeout=timeout + DRAIN_GRACE, return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        if not draining.done():
            draining.cancel()
        elif draining.exception() is not None:
            log.error("draining failed", exc_info=draining.exception())

    async def _close(self) -> None:
        self._draining = True
        for step in (self.directory.stop(), self.node.stop(LEAVE_TIMEOUT)):
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await step
            except (MeshError, TimeoutError) as error:
                log.warning("while stopping: %s %s", type(error).__name__, error)
        if self._directory_node is not None:
            await self._directory_node.stop(LEAVE_TIMEOUT)
        for socket in self._sockets:
            socket.remove()
        await self.health_server.stop()


class SocketFile:
    """The file of a bound ipc endpoint, which the socket library leaves behind."""

    def __init__(self, endpoint: str) -> None:
        self._path = Path(endpoint.removeprefix("ipc://")) if endpoint.startswith("ipc://") else None
        self._inode = self._path.stat().st_ino if self._path else 0

    def remove(self) -> None:
        """Unless it is another's by now."""
        with contextlib.suppress(FileNotFoundError):
            if self._path is not None and self._path.stat().st_ino == self._inode:
                self._path.unlink()


def run_role(role: str, settings: Settings, actor_class: type[Actor] | None = None) -> int:
    """A whole process: environment, log, event loop, signals. The exit code. `actor_class` as of RoleProcess; one that
    is given isn't kept warm."""
    try:
        prepare_process(role, settings)
    except ValueError as error:
        # A setting: another try would end the same.
        log.error("cannot run: %s", error)
        return EXIT_CONFIG
    import uvloop

    known_as = os.getpid()
    if actor_class is None and role in KEPT_WARM:
        code = _fork_worker(role)
        if code is not None:
            return code
    # Not before the fork, which would leave its thread behind.
    output.install()
    configure_log(settings.log_level, log_name(role, settings), settings.log_format)
    # A step of many sequences makes some thousand objects, which die with it: they aren't worth a search for cycles.
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_main(role, settings, actor_class, known_as))


def _fork_worker(role: str) -> int | None:
    """None in the worker, as WarmParent.run."""
    _find_actor(role)
    slow = importlib.import_module(KEPT_WARM[role])
    code = WarmParent(role, slow.load).run()
    if code is None:
        slow.when_loaded(tell_parent)
    return code


async def _main(role: str, settings: Settings, actor_class: type[Actor] | None, known_as: int) -> int:
    try:
        process = RoleProcess(role, settings, actor_class, known_as)
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, process.stop)
        return await process.run()
    except Exception as error:
        # What a person can fix is one line; what is our fault comes with its trace.
        known = hasattr(error, "fix") or isinstance(error, MeshError | OSError | ValueError)
        log.error("cannot run: %s", error, exc_info=None if known else error)
        return EXIT_CONFIG if hasattr(error, "fix") else 1


def prepare_process(role: str, settings: Settings) -> None:
    """To be called before anything heavy is imported: threads read their environment once. Raises ValueError."""
    if role == "worker":
        require_nixl(settings.page_transport)
    for name, value in compute_environment(role, settings).items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(AttributeError, OSError):
        # glibc's M_ARENA_MAX: MALLOC_ARENA_MAX is read before we run, this works at any time.
        ctypes.CDLL(None).mallopt(-8, 2)
    configure_log(settings.log_level, log_name(role, settings), settings.log_format)
    take_place(role, settings.cores, settings.niceness)
    faulthandler.enable()
    # kill -USR1 shows where a stuck process is.
    faulthandler.register(signal.SIGUSR1)


def log_name(role: str, settings: Settings) -> str:
    return f"{role}/{instance_name(settings, role)}"


def _find_actor(role: str) -> type[Actor]:
    module = importlib.import_module(f"services.{role}.actor")
    return cast(type[Actor], getattr(module, f"{role.capitalize()}Actor"))


def security_of(settings: Settings, role: str, instance: str) -> FolderSecurity | None:
    """The instance's own key where there is one, else the role's. Raises Insecure."""
    if not settings.keys_dir:
        return None
    folder = Path(settings.keys_dir)
    own = instance if (folder / f"{instance}.secret").exists() else role
    return load_security(folder, own)


def make_run_dir(folder: Path) -> None:
    """Whoever can write there can pretend to be any role: it is ours alone or we don't start."""
    another = f"--run-dir {_another(folder)}"
    try:
        make_own_folder(folder, f"chmod 700 it, or choose another: {another}")
    except OSError as error:
        if error.errno is None:
            # It says all of it.
            raise
        raise PermissionError(f"run_dir {folder} cannot be made ({error.strerror})\n  fix: {another}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"run_dir {folder} cannot be written\n  fix: chmod 700 {folder}, or {another}")


def _another(folder: Path) -> Path:
    """A folder that this user can make, short enough for the names of sockets."""
    usual = Path(tempfile.gettempdir()) / f"specmesh-{os.getuid()}"
    return usual if usual != folder else usual.with_name(usual.name + "-2")
