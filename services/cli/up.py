"""`specmesh up`: the whole mesh on this machine. Fetches the model, hosts the directory, starts and watches the roles,
says when it is ready, and leaves no process and no socket behind.

Knows nothing of torch, tokens or HTTP bodies. Which processes: launch_plan.py; when they are started again:
mesh/supervisor/decide.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.directory import DIRECTORY, DirectoryActor
from mesh.directory.membership import Member
from mesh.epoch import next_epoch
from mesh.errors import MeshError
from mesh.node import Node
from mesh.supervisor import Policy
from mesh.transport.zmq import ZmqTransport
from models.errors import ModelError
from services.api.certificates import server_context
from services.api.chosen_head import with_verifier
from services.api.hosts import client_host
from services.api.messages import Describe, ModelCard
from services.api.methods import METHODS
from services.api.own_door import has_tls, own_context
from services.api.page_transport import require_nixl
from services.api.sampling_defaults import SamplingDefaults, sampling_of
from services.api.settings import Settings, cache_dir, endpoint, run_dir, sockets_in
from services.cli.banner import box, door_url
from services.cli.launch_plan import PortsTaken, Process, check_ports, keys_file, processes_of, with_free_port
from services.cli.progress_bar import ProgressBar
from services.placement.plan import works
from services.runtime import compile_ahead, output
from services.runtime.children import Children
from services.runtime.ending import ending_signals
from services.runtime.log import configure_log, has_colours, painted
from services.runtime.process import SocketFile, make_run_dir, mesh_codec, security_of
from services.runtime.refusal import refuse
from services.runtime.roles import RENEWED_IN_PLACE

if TYPE_CHECKING:
    from models.spec import Network

log = logging.getLogger(__name__)

# Requests need these roles; without a proposer they are only slower.
ESSENTIAL = frozenset({"tokenizer", "worker", "streamer"})
# Time that a role needs to exit once it has drained.
LEAVE_GRACE = 5.0  # s
# In run_dir while the mesh serves: where its HTTP API is, for programs of this machine.
DOOR = "door"
# Replaces the workers one by one (services/cli/roll.py).
ROLL = signal.SIGUSR2
# For so long after it is lost a streamer may be heard of again, though others are ready.
HUNG_AFTER = 1.0  # s
# The longest time of a start without a line that says what is waited for.
SILENCE = 15.0  # s
# What a person at a terminal needn't see; requests and throughput are what one watches a server for.
_ROUTINE = re.compile(r"\S+ (DEBUG|INFO) (?!\S+ specmesh\.(requests|throughput): )")


def main(settings: Settings, parent: int | None = None) -> int:
    """Runs until one of ending.py's signals, or until `parent` is closed. The exit code."""
    # The event loop that restarts roles and handles signals must not block when the reader of our output is slow.
    output.install()
    configure_log(settings.log_level, "up", settings.log_format)
    folder = run_dir(settings)
    try:
        require_nixl(settings.page_transport)
        if has_tls(settings):
            # Otherwise every streamer would fail and be restarted.
            server_context(settings.ssl_certfile, settings.ssl_keyfile)
        make_run_dir(folder)
        with _locked(folder), keys_file(settings):
            _remove_stale_sockets(folder)
            settings = with_verifier(with_free_port(settings))
            processes = processes_of(settings, endpoint(settings, DIRECTORY))
            check_ports(settings, processes)
            with compiling(settings):
                model = fetch_model(settings)
            try:
                sampling = sampling_of(model, settings.generation_config).defaults
                return asyncio.run(Up(settings, processes, sampling, parent).run())
            finally:
                # Sockets of a role that was killed.
                _remove_stale_sockets(folder)
                (folder / DOOR).unlink(missing_ok=True)
    except KeyboardInterrupt:
        print("\nspecmesh: stopped", file=sys.stderr)
        return 130
    except (PortsTaken, AnotherMesh, ModelError, MeshError, OSError, ValueError) as error:
        return refuse(error)


# Before anything is started --------------------------------------------------------------------------------------


class AnotherMesh(Exception):
    """The run_dir is in use."""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One mesh a run_dir. The kernel releases the lock however we end."""
    with (folder / "up.lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read(20).strip() or "unknown"
            raise AnotherMesh(
                f"a mesh is running in {folder} (process {pid})\n"
                "  fix: stop it, or give this one its own --run-dir, --port and --metrics-port"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _remove_stale_sockets(folder: Path) -> None:
    """Removes sockets of processes that were killed; we hold the lock, so nothing listens there."""
    for path in sockets_in(folder):
        path.unlink(missing_ok=True)


def _say(text: str) -> None:
    print(f"specmesh: {text}", file=sys.stderr, flush=True)


@contextmanager
def compiling(settings: Settings) -> Iterator[None]:
    """At the first start on a CPU, the loops are compiled while the model is fetched. Says so: nothing else is seen of
    it for a minute or two."""
    if compile_ahead.modules(settings) != compile_ahead.MODULES or not compile_ahead.wanted():
        yield
        return
    _say("first start: compiling loops for this processor takes one or two minutes; later starts take seconds")
    began = time.monotonic()
    compilers = compile_ahead.start()
    try:
        yield
        if any(process.poll() is None for process in compilers):
            _say(f"the model is here; compiling goes on ({time.monotonic() - began:.0f} s so far)")
        compile_ahead.wait(compilers)
        _say(f"compiled after {time.monotonic() - began:.0f} s; starting")
    finally:
        compile_ahead.stop(compilers)


def fetch_model(settings: Settings, with_head: bool = True) -> Path:
    """Its folder, checked."""
    from models.check import check_context, check_model
    from models.sources import ensure_model

    bar = ProgressBar()
    try:
        folder = ensure_model(settings.model, cache_dir(settings), bar, settings.dtype)
    finally:
        bar.close()
    if settings.engine == "torch":
        # Checked once before anything is started: otherwise every role would fail and be restarted.
        network = check_model(folder).network
        check_context(network, settings.max_context)
        if with_head:
            _fetch_head(settings, folder, network)
    return folder


def _fetch_head(settings: Settings, folder: Path, network: Network) -> None:
    """The head or draft model that the worker is to draft with, checked for the same reason."""
    from models.heads.folder import read_head
    from services.api.chosen_head import chosen_head

    chosen = chosen_head(settings)
    if chosen and METHODS[chosen.method].has_network:
        read_head(chosen.method, chosen.folder(settings, folder), network)


def is_replaceable(instance: str, members: Sequence[Member]) -> bool:
    """Whether it is lost and another one of its role is ready."""
    found = next((each for each in members if each.instance == instance), None)
    if found is None or found.state != "lost":
        return False
    return any(each.role == found.role and each.state == "ready" for each in members)


# The mesh ----------------------------------------------------------------------------------------------------------


class Up:
    """The supervisor process: the directory, the children, and the output for the user."""

    def __init__(
        self, settings: Settings, processes: list[Process], sampling: SamplingDefaults, parent: int | None = None
    ) -> None:
        """`parent`: a file that is closed when the mesh is to end."""
        self._settings = settings
        self._parent = parent
        self._sampling = sampling
        self._processes = {process.instance: process for process in processes}
        # A key named directory where there is one, else the streamer's: both are on this machine.
        security = security_of(settings, "streamer", DIRECTORY)
        epoch = next_epoch(run_dir(settings))
        self._node = Node(ZmqTransport(security=security), mesh_codec(), name=DIRECTORY, epoch=epoch)
        self._directory = DirectoryActor(stale_after=settings.stale_after, on_change=self._members_changed)
        policy = Policy(kill_stuck_after=settings.kill_stuck_after, drain_timeout=settings.drain_timeout + LEAVE_GRACE)
        self._children = Children(
            [process.child for process in processes],
            policy,
            log_dir=run_dir(settings) / "logs",
            on_line=self._child_said,
            on_gave_up=self._gave_up,
            on_exited=self._directory.bury,
        )
        self._began = time.monotonic()
        self._was_ready: set[str] = set()
        self._missing = set(self._processes)
        self._members: list[Member] = []
        self._changed = asyncio.Event()
        self._serving = False
        self._stopping = False
        self._failed = False

    async def run(self) -> int:
        await self._node.start(endpoint(self._settings, DIRECTORY))
        socket = SocketFile(self._node.endpoint)
        await self._node.spawn(self._directory, DIRECTORY)
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(ROLL, self._children.roll, "worker")
        if self._parent is not None:
            loop.add_reader(self._parent, self._parent_is_gone)
        welcoming = asyncio.create_task(self._welcome())
        try:
            await self._children.run()
        finally:
            welcoming.cancel()
            await asyncio.wait([welcoming])
            await self._node.stop(0.2)
            socket.remove()
        if not self._failed:
            _say("stopped")
        return 1 if self._failed else 0

    def _stop(self) -> None:
        if not self._stopping:
            _say("draining; again to end at once")
        self._stopping = True
        self._children.stop()

    def _parent_is_gone(self) -> None:
        """Nobody wants what still runs."""
        assert self._parent is not None
        if not os.read(self._parent, 4096):
            asyncio.get_running_loop().remove_reader(self._parent)
            self._stop()
            self._stop()

    # The children --------------------------------------------------------------------------------------------------

    def _members_changed(self, members: list[Member]) -> None:
        self._members = members
        for member in members:
            # An entry of a dead process says nothing about its successor.
            if member.pid == self._children.pid(member.instance):
                self._children.readiness(member.instance, works(member, self._settings.stale_after))
                if member.state == "lost":
                    self._lost(member)
                if member.state == "ready":
                    self._note_ready(member.instance)
        self._changed.set()

    def _lost(self, member: Member) -> None:
        """Its work is others' now. One that could go on in place has a little longer to be heard of: its clients have
        no other, but new ones come to it as long as it is there."""
        if member.role not in RENEWED_IN_PLACE:
            self._children.fenced(member.instance)
        else:
            asyncio.get_running_loop().call_later(HUNG_AFTER, self._end_hung, member.instance, member.pid)

    def _end_hung(self, name: str, pid: int) -> None:
        if self._children.pid(name) == pid and is_replaceable(name, self._members):
            self._children.fenced(name)

    def _note_ready(self, name: str) -> None:
        self._missing.discard(name)
        if name in self._processes and name not in self._was_ready:
            self._was_ready.add(name)
            _say(f"{name} is ready after {time.monotonic() - self._began:.1f} s")

    def _gave_up(self, name: str, reason: str) -> None:
        role = self._processes[name].role
        if role in ESSENTIAL and not self._serving:
            self._failed = True
            refuse(f"{name} cannot run: {reason}\n  its log: {run_dir(self._settings)}/logs/{name}.log")
            self._stopping = True
            self._children.stop()
        else:
            self._missing.discard(name)
            self._changed.set()
            hint = "" if role in ESSENTIAL else "; the mesh goes on without its drafts"
            _say(f"{name} failed and will be tried again{hint}: {reason.splitlines()[0]}")

    def _child_said(self, name: str, line: str) -> None:
        """On a terminal only important lines; everything is in the logs."""
        if not (sys.stderr.isatty() and _ROUTINE.match(line)):
            shown = painted(line) if has_colours(sys.stderr) else line
            print(f"{name:<12}| {shown}", file=sys.stderr, flush=True)

    # When all are ready --------------------------------------------------------------------------------------------

    async def _welcome(self) -> None:
        clock = asyncio.get_running_loop().time
        tell_at = clock() + SILENCE
        while self._missing:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(tell_at):
                    await self._changed.wait()
            if self._missing and clock() >= tell_at:
                _say(waiting_for(self._missing, time.monotonic() - self._began))
                tell_at = clock() + SILENCE
        # There is no event for another process opening its port.
        while not await self._door_is_open():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self._serving = True
        (run_dir(self._settings) / DOOR).write_text(door_of(self._settings) + "\n", "utf-8")
        took = time.monotonic() - self._began
        processes, folder = list(self._processes.values()), run_dir(self._settings)
        print(box(self._settings, processes, await self._card(), took, folder, self._sampling), flush=True)

    async def _door_is_open(self) -> bool:
        """The streamer's health, through the port that clients will use."""
        settings = self._settings
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5.0):
                if settings.uds:
                    reader, writer = await asyncio.open_unix_connection(settings.uds)
                else:
                    reader, writer = await asyncio.open_connection(
                        client_host(settings.host), settings.port, ssl=own_context(settings)
                    )
                try:
                    writer.write(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    return b" 200 " in await reader.readline()
                finally:
                    writer.close()
        return False

    async def _card(self) -> ModelCard | None:
        """The worker's model card; None if it doesn't answer."""
        worker = next((member for member in self._members if member.role == "worker"), None)
        if worker is None:
            return None
        try:
            card = await self._node.ref(worker.endpoint, "worker").ask(Describe(), timeout=2.0)
        except MeshError as error:
            log.warning("the worker doesn't describe its model: %s", error)
            return None
        return card if isinstance(card, ModelCard) else None


def door_of(settings: Settings) -> str:
    """The address; with TLS another line with the file of the certificate, which is seldom for this machine's own
    address."""
    certificate = f"\n{Path(settings.ssl_certfile).absolute()}" if has_tls(settings) else ""
    return f"unix:{settings.uds}" if settings.uds else door_url(settings) + certificate


def waiting_for(missing: set[str], seconds: float) -> str:
    """What a start that takes long is doing."""
    what = f"after {seconds:.0f} s still waiting for {', '.join(sorted(missing))}"
    if any(name.startswith("worker") for name in missing):
        what += ": it loads the model, and compiles loops it never ran here (one or two minutes)"
    return what
