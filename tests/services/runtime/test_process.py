"""A role's process from outside: its side door, its exit code, what the directory says of it. Real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.running_mesh import free_ports
from mesh.directory import DIRECTORY, DirectoryActor, DirectoryClient
from mesh.directory.actor import Announce
from mesh.directory.membership import Member
from mesh.epoch import FILE, next_epoch
from mesh.errors import MeshError
from mesh.node import Node
from mesh.supervisor import EXIT_CONFIG, EXIT_FENCED
from mesh.transport.zmq import ZmqTransport
from services.api.messages import Decode, MetricsText, ReadMetrics
from services.runtime.introspection import INTROSPECTION
from services.runtime.process import SocketFile, mesh_codec

ROOT = Path(__file__).parents[3]
TINY = Path(__file__).with_name("tiny_role.py")
LONG = 20.0  # s: more than anything here takes


class Child:
    """A tiny role in a process of its own."""

    def __init__(self, folder: Path, role: str, name: str, orders: str, settings: dict[str, str]) -> None:
        self.name = name
        self.port = free_ports(1)
        self.errors = folder / f"{name}.err"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SPECMESH_")}
        environment |= {
            "PYTHONPATH": str(ROOT),
            "TINY": orders,
            "SPECMESH_RUN_DIR": str(folder / "run"),
            "SPECMESH_INSTANCE": name,
            "SPECMESH_METRICS_PORT": str(self.port),
            **settings,
        }
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(TINY), role], env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), LONG)).strip()

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, LONG)

    async def get(self, path: str) -> tuple[int, dict[str, object]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), json.loads(body) if body.startswith(b"{") else {}

    def last_words(self) -> str:
        return self.errors.read_text().strip().splitlines()[-1]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Town:
    """A directory in this process, a watcher, and children."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[Child] = []
        self._changed = asyncio.Event()

    async def open(self) -> None:
        run = self.folder / "run"
        run.mkdir(mode=0o700)
        self.directory = Node(ZmqTransport(), mesh_codec(), name=DIRECTORY)
        await self.directory.start(f"ipc://{run}/directory.sock")
        await self.directory.spawn(DirectoryActor(), DIRECTORY)
        self.node = Node(ZmqTransport(), mesh_codec(), name="watcher")
        await self.node.start()
        self.view = DirectoryClient(self.node, self.directory.endpoint, interval=0.1)
        self.view.on_change(self._changed.set)
        await self.view.start()

    def child(self, role: str = "worker", name: str = "worker-1", orders: str = "", **settings: str) -> Child:
        child = Child(self.folder, role, name, orders, {f"SPECMESH_{k.upper()}": v for k, v in settings.items()})
        self.children.append(child)
        return child

    async def until(self, condition: Callable[[], bool], seconds: float = LONG) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def state(self, name: str) -> str:
        for member in [*self.view.members(), *self.view.lost()]:
            if member.instance == name:
                return member.state
        return "unknown"

    def member(self, name: str) -> Member:
        return next(member for member in self.view.members() if member.instance == name)

    async def ready(self, name: str) -> None:
        await self.until(lambda: self.state(name) == "ready")

    async def say(self, name: str, word: str) -> None:
        member = self.member(name)
        ref = self.node.ref(member.endpoint, member.role)
        await ref.ask(Decode(token_ids=list(word.encode())), timeout=LONG)

    async def close(self) -> None:
        for child in self.children:
            child.end()
        await self.view.stop()
        await self.node.stop(0.2)
        await self.directory.stop(0.2)


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    town = Town(tmp_path)
    await town.open()
    yield town
    await town.close()


async def test_a_process_gives_its_metrics_over_the_mesh_too(town: Town) -> None:
    town.child()
    await town.ready("worker-1")
    window = town.node.ref(town.member("worker-1").endpoint, INTROSPECTION)
    answer = await window.ask(ReadMetrics(), timeout=LONG)
    assert isinstance(answer, MetricsText)
    assert b"\nspecmesh:process_ready 1.0\n" in answer.text


async def test_a_role_joins_serves_its_side_door_and_leaves_on_sigterm_with_0(town: Town) -> None:
    child = town.child()
    await town.ready("worker-1")
    assert town.member("worker-1").load == 3
    assert town.member("worker-1").metrics == f"http://127.0.0.1:{child.port}"
    status, body = await child.get("/health/ready")
    assert (status, body) == (200, {"ready": True, "role": "worker", "instance": "worker-1", "reasons": []})
    assert (await child.get("/metrics"))[0] == 200
    child.process.send_signal(signal.SIGTERM)
    assert await child.exit_code() == 0
    await town.until(lambda: town.state("worker-1") == "unknown")
    assert not list((town.folder / "run").glob("worker*"))


async def test_while_it_drains_it_is_live_and_not_ready_and_running_work_is_finished(town: Town) -> None:
    child = town.child()
    await town.ready("worker-1")
    await town.say("worker-1", "busy")
    child.process.send_signal(signal.SIGTERM)
    await town.until(lambda: town.state("worker-1") == "draining")
    assert await child.line() == "draining"
    assert (await child.get("/health/live"))[0] == 200
    status, body = await child.get("/health/ready")
    assert status == 503 and body["reasons"] == ["draining"]
    await town.say("worker-1", "done")
    assert await child.exit_code() == 0
    assert await child.line() == "stopped"


async def test_a_drain_that_doesnt_end_is_cut_at_its_time_and_by_a_second_signal(
    town: Town, with_terminal: None
) -> None:
    late = town.child(name="worker-1", orders="drain_hangs", drain_timeout="0.1")
    stubborn = town.child(name="worker-2", orders="drain_hangs", drain_timeout="3600")
    await town.ready("worker-1")
    await town.ready("worker-2")
    late.process.send_signal(signal.SIGTERM)
    stubborn.process.send_signal(signal.SIGHUP)
    assert await stubborn.line() == "draining"
    stubborn.process.send_signal(signal.SIGINT)
    assert await late.exit_code() == 0
    assert await stubborn.exit_code() == 0


async def test_what_it_misses_and_missing_progress_are_said_and_it_gets_well_again(town: Town) -> None:
    child = town.child()
    await town.ready("worker-1")
    await town.say("worker-1", "miss")
    await town.until(lambda: town.state("worker-1") == "unready")
    assert town.member("worker-1").reasons == ["nobody to talk to"]
    assert (await child.get("/health/ready"))[0] == 503
    await town.say("worker-1", "fine")
    await town.ready("worker-1")
    await town.say("worker-1", "stuck")
    await town.until(lambda: town.state("worker-1") == "unready")
    assert "none was completed" in town.member("worker-1").reasons[0]
    assert town.view.pick("worker") is None


async def test_a_stopped_process_is_lost_within_three_seconds_and_ends_with_75_when_it_wakes(town: Town) -> None:
    child = town.child()
    await town.ready("worker-1")
    child.process.send_signal(signal.SIGSTOP)
    await town.until(lambda: town.state("worker-1") == "lost", seconds=3.0)
    child.process.send_signal(signal.SIGCONT)
    assert await child.exit_code() == EXIT_FENCED
    assert await child.line() == "stopped"
    await town.until(lambda: town.state("worker-1") == "unknown")

    town.child()
    await town.ready("worker-1")


async def test_a_streamer_that_was_taken_for_lost_goes_on_with_a_new_epoch(town: Town) -> None:
    child = town.child("streamer", "streamer-1")
    await town.ready("streamer-1")
    before = town.member("streamer-1")
    child.process.send_signal(signal.SIGSTOP)
    await town.until(lambda: town.state("streamer-1") == "lost", seconds=3.0)
    child.process.send_signal(signal.SIGCONT)
    await town.ready("streamer-1")
    after = town.member("streamer-1")
    assert after.pid == before.pid == child.process.pid and after.epoch > before.epoch
    await town.say("streamer-1", "fine")


async def test_a_streamer_that_was_replaced_ends(town: Town) -> None:
    child = town.child("streamer", "streamer-1")
    await town.ready("streamer-1")
    newer = replace(town.member("streamer-1"), epoch=town.member("streamer-1").epoch + 1)
    await town.node.ref(town.directory.endpoint, DIRECTORY).ask(Announce(newer), timeout=LONG)
    assert await child.exit_code() == EXIT_FENCED


async def test_after_the_clock_has_stepped_back_a_restart_is_taken(town: Town) -> None:
    """By the run_dir's file; where that is lost, too, by what the directory tells."""
    ahead = time.time_ns() // 1000 + 3600 * 10**6
    (town.folder / "run" / FILE).write_text(f"{ahead}\n")
    first = town.child()
    await town.ready("worker-1")
    assert town.member("worker-1").epoch > ahead
    first.end()
    (town.folder / "run" / FILE).unlink()
    await town.until(lambda: town.state("worker-1") == "lost")
    second = town.child()
    assert await second.exit_code() == EXIT_FENCED, "it keeps what it was told"
    town.child()
    await town.ready("worker-1")


async def test_a_peer_that_knows_a_newer_epoch_fences_at_once(town: Town) -> None:
    far = Node(ZmqTransport(), mesh_codec(), name="far")
    await far.start(f"ipc://{town.folder}/far.sock")
    await far.spawn(DirectoryActor(), DIRECTORY)
    child = town.child(directory=far.endpoint)
    far._newest["worker-1"] = ahead = time.time_ns() // 1000 + 10**9
    try:
        assert await child.exit_code() == EXIT_FENCED
        assert next_epoch(town.folder / "run") > ahead
    finally:
        await far.stop(0.2)


async def test_an_event_loop_that_is_stuck_is_lost_though_the_process_lives(town: Town) -> None:
    child = town.child()
    await town.ready("worker-1")
    saying = asyncio.ensure_future(town.say("worker-1", "block"))
    assert await child.line() == "blocking"
    await town.until(lambda: town.state("worker-1") == "lost", seconds=3.0)
    assert child.process.poll() is None
    child.end()
    await asyncio.wait([saying])
    assert saying.exception() is not None


async def test_a_process_whose_actor_is_gone_ends_with_1_so_that_it_is_started_again(town: Town) -> None:
    child = town.child()
    await town.ready("worker-1")
    with contextlib.suppress(MeshError):
        await town.say("worker-1", "leave")
    assert await child.exit_code() == 1
    assert "the worker actor is gone" in child.errors.read_text()
    await town.until(lambda: town.state("worker-1") == "unknown")


async def test_one_that_cannot_start_ends_with_1_and_its_last_line_is_why(town: Town) -> None:
    child = town.child(orders="start_fails")
    assert await child.exit_code() == 1
    assert re.search(r"ERROR worker/worker-1 .*no weights in this folder$", child.last_words())


async def test_cores_that_this_machine_lacks_end_it_with_78_so_that_nobody_tries_again(town: Town) -> None:
    child = town.child(cores="worker=9999")
    assert await child.exit_code() == EXIT_CONFIG
    assert "cannot run: cores: " in child.last_words()


async def test_one_whose_side_door_port_is_taken_says_which_setting_to_change(town: Town) -> None:
    first = town.child()
    await town.ready("worker-1")
    second = town.child(name="worker-2", metrics_port=str(first.port))
    assert await second.exit_code() == 1
    assert "--metrics-port" in second.last_words()


async def test_while_it_loads_it_is_live_and_sigterm_ends_it(town: Town) -> None:
    child = town.child(orders="start_hangs")
    assert await child.line() == "hanging"
    await town.until(lambda: town.state("worker-1") == "starting")
    assert (await child.get("/health/live"))[0] == 200
    assert (await child.get("/health/ready"))[1]["reasons"] == ["starting"]
    child.process.send_signal(signal.SIGTERM)
    assert await child.exit_code() == 0


async def test_a_role_may_host_the_directory(tmp_path: Path) -> None:
    town = Town(tmp_path)
    child = town.child("tokenizer", "tokenizer-1", host_directory="true")
    town.node = Node(ZmqTransport(), mesh_codec(), name="watcher")
    await town.node.start()
    town.view = DirectoryClient(town.node, f"ipc://{tmp_path}/run/directory.sock", interval=0.1)
    town.view.on_change(town._changed.set)
    await town.view.start()
    try:
        await town.ready("tokenizer-1")
    finally:
        child.end()
        await town.view.stop()
        await town.node.stop(0.2)


async def test_a_socket_that_a_successor_made_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    path.touch()
    ours = SocketFile(f"ipc://{path}")
    successor = tmp_path / "b.sock"
    successor.touch()
    successor.replace(path)
    ours.remove()
    assert path.exists()
    SocketFile(f"ipc://{path}").remove()
    assert not path.exists()
    SocketFile("tcp://127.0.0.1:7000").remove()


async def test_a_run_dir_that_others_can_write_to_is_refused(town: Town) -> None:
    os.chmod(town.folder / "run", 0o777)
    child = town.child()
    assert await child.exit_code() == 1
    assert "chmod 700" in child.last_words()


async def test_tcp_without_keys_doesnt_start(town: Town) -> None:
    child = town.child(bind="tcp://0.0.0.0:0")
    assert await child.exit_code() == 1
    assert "specmesh keys" in child.last_words()


def test_the_runtime_itself_imports_neither_torch_nor_aiohttp() -> None:
    code = "import sys, services.runtime.process; print(sorted({'torch', 'aiohttp'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "[]"
