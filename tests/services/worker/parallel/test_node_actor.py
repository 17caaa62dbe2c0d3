"""A node of a split worker as a member of the mesh: whom it joins, and how long its ranks run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from mesh_around import FakeDirectory, until
from mesh_doubles.memory import MemoryNetwork
from tiny_folder import write_tiny_model

from mesh.directory.membership import Member
from mesh.errors import Busy, MeshError, RemoteError
from mesh.node import Node
from models.fingerprint import fingerprint
from services.api.messages import JoinWorker, NodeJoined, RunRanks
from services.api.nodes import ANOTHER_WORKER, WORKER_NODE
from services.api.settings import Settings
from services.runtime.process import mesh_codec
from services.runtime.version import own_version
from services.worker.parallel import node_actor
from services.worker.parallel.node_actor import NodeActor
from services.worker.parallel.nodes import Nodes
from services.worker.parallel.rank import Start

OPTIONS: dict[str, str | int | float | bool] = {"dtype": "float32", "threads": 1, "strict": True}
TOLD = RunRanks(
    executor="plain", quantization="none", gpu=False, store="127.0.0.1", port=7000, generation="ab", options=OPTIONS
)


class FakeProcesses:
    """Ranks that only say that they run."""

    made: list[FakeProcesses] = []  # noqa: RUF012

    def __init__(self, lost: Callable[[str], Any]) -> None:
        self.tell_lost, self.running, self.ended = lost, list[Start](), 0
        FakeProcesses.made.append(self)

    def start(self, start: Start) -> None:
        self.running.append(start)

    def end(self) -> None:
        self.ended += 1


class Pair:
    """A worker's node of the mesh, and another node with its actor."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        network, codec = MemoryNetwork(), mesh_codec()
        self.worker = Node(network.transport(), codec, name="worker", epoch=1)
        self.other = Node(network.transport(), codec, name="other", epoch=1)
        self.directory = FakeDirectory()
        self.settings = Settings.for_tests(
            **{
                "model": str(folder), "nnodes": 2, "node_rank": 1, "tensor_parallel_size": 4, "threads": 6,
                "master_addr": "127.0.0.1", "keys_dir": "keys", **settings,
            }
        )  # fmt: skip
        self.fits = JoinWorker(
            port=29501, version=own_version(), nodes=2, ranks=4, model=astuple(fingerprint(folder))
        )

    async def start(self) -> None:
        await self.worker.start("mem://worker")
        await self.other.start("mem://other")
        directory = SimpleNamespace(connected=True)
        context: Any = SimpleNamespace(settings=self.settings, node=self.other, directory=directory)
        self.actor = NodeActor(context)
        await self.other.spawn(self.actor, WORKER_NODE)
        self.ref = self.worker.ref("mem://other", WORKER_NODE)

    def nodes(self, **more: Any) -> Nodes:
        """As the worker makes them, with the other node ready."""
        self.directory.ready = lambda role: [Member(role, "other", "mem://other", 1, "ready")]  # type: ignore[method-assign]
        return Nodes(self.worker, self.directory, "127.0.0.1", 29501, 2, 4, **more)

    async def refusal(self, **changes: Any) -> RemoteError:
        with pytest.raises(RemoteError) as refused:
            await self.ref.ask(msgspec.structs.replace(self.fits, **changes), timeout=5.0)
        return refused.value


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcesses]:
    FakeProcesses.made = []
    monkeypatch.setattr(node_actor, "RankProcesses", FakeProcesses)
    return FakeProcesses.made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@asynccontextmanager
async def pair_of(folder: Path, **settings: Any) -> AsyncIterator[Pair]:
    pair = Pair(folder, **settings)
    await pair.start()
    try:
        yield pair
    finally:
        await pair.worker.stop(0.2)
        await pair.other.stop(0.2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.0.1"}, f"node 1 runs specmesh {own_version()}, and node 0 0.0.1"),
        ({"nodes": 3}, "node 1 was started with nnodes 2, and node 0 with 3"),
        ({"ranks": 2}, "node 1 was started with tensor_parallel_size 4, and node 0 with 2"),
        ({"model": ("big", "a", "b", "c")}, "node 1 has another model: tiny beside big, with another config.json"),
    ],
)
async def test_a_node_that_differs_says_in_what_and_ends(folder: Path, changes: dict[str, Any], said: str) -> None:
    async with pair_of(folder) as pair:
        refused = await pair.refusal(**changes)
        assert (refused.reason, refused.message) == ("unfit", said)
        await until(lambda: pair.other.actors == [])


async def test_a_node_of_another_worker_stays_and_joins_its_own(folder: Path) -> None:
    async with pair_of(folder) as pair:
        assert (await pair.refusal(port=29502)).reason == ANOTHER_WORKER
        assert await pair.ref.ask(pair.fits, timeout=5.0) == NodeJoined(node=1)


async def test_ranks_run_while_the_worker_holds_them(folder: Path, processes: list[FakeProcesses]) -> None:
    async with pair_of(folder) as pair:
        async with pair.ref.stream(TOLD, timeout=60.0) as items:
            assert await anext(items) == NodeJoined(node=1)
            (ranks,) = processes
            assert [(each.rank, each.device, each.generation) for each in ranks.running] == [(2, 0, "ab"), (3, 1, "ab")]
            assert {each.options["threads"] for each in ranks.running} == {3} and pair.actor.load() == 2
            with pytest.raises(Busy, match="ranks of an earlier worker"):
                await pair.ref.ask(pair.fits, timeout=5.0)
            with pytest.raises(Busy, match="ranks of another worker"):
                async with pair.ref.stream(msgspec.structs.replace(TOLD, generation="cd"), timeout=60.0) as others:
                    await anext(others)
            assert ranks.ended == 0
        await until(lambda: ranks.ended == 1 and pair.actor.load() == 0)
        assert await pair.ref.ask(pair.fits, timeout=5.0) == NodeJoined(node=1)
    assert len(processes) == 1


async def test_what_ended_a_rank_is_told_and_the_others_end(folder: Path, processes: list[FakeProcesses]) -> None:
    async with pair_of(folder) as pair, pair.ref.stream(TOLD, timeout=60.0) as items:
        await anext(items)
        processes[0].tell_lost("rank 3 ended with -9")
        with pytest.raises(RemoteError, match="rank 3 ended with -9"):
            await anext(items)
        await until(lambda: processes[0].ended == 1)


async def test_a_worker_that_stops_or_falls_silent_takes_the_ranks_with_it(
    folder: Path, processes: list[FakeProcesses]
) -> None:
    async with pair_of(folder) as pair:
        items = await pair.ref.stream(TOLD, timeout=60.0).__aenter__()
        await anext(items)
        await pair.worker.stop(0.2)
        await until(lambda: processes[0].ended == 1)


async def test_the_worker_gathers_its_nodes_and_hears_when_one_is_lost(
    folder: Path, processes: list[FakeProcesses]
) -> None:
    lost: list[str] = []
    async with pair_of(folder) as pair:
        nodes = pair.nodes()
        await asyncio.to_thread(nodes.gather, fingerprint(folder))
        await asyncio.to_thread(nodes.run, TOLD, lost.append)
        await until(lambda: bool(processes))
        await pair.other.stop(0.2)
        await until(lambda: bool(lost))
    assert len(lost) == 1 and lost[0].startswith("node 1 (")


async def test_a_worker_that_stops_calls_no_node_lost(folder: Path, processes: list[FakeProcesses]) -> None:
    lost: list[str] = []
    async with pair_of(folder) as pair:
        nodes = pair.nodes()
        await asyncio.to_thread(nodes.gather, fingerprint(folder))
        await asyncio.to_thread(nodes.run, TOLD, lost.append)
        await until(lambda: bool(processes))
        nodes.close()
        await until(lambda: processes[0].ended == 1)
    assert lost == []


async def test_ranks_outlive_the_deadline_of_a_stream(folder: Path, processes: list[FakeProcesses]) -> None:
    lost: list[str] = []
    async with pair_of(folder) as pair:
        opened = 0
        run_ranks = pair.actor.run_ranks

        async def counted(*arguments: Any) -> None:
            nonlocal opened
            opened += 1
            await run_ranks(*arguments)

        pair.other._cells[WORKER_NODE]._streams["run_ranks"] = counted
        nodes = pair.nodes(renew=0.05)
        await asyncio.to_thread(nodes.gather, fingerprint(folder))
        await asyncio.to_thread(nodes.run, TOLD, lost.append)
        await until(lambda: opened > 6)
        assert lost == [] and len(processes) == 1 and processes[0].ended == 0
        nodes.close()


async def test_a_node_that_is_missing_or_unfit_is_waited_for_and_named(
    folder: Path, processes: list[FakeProcesses], caplog: pytest.LogCaptureFixture
) -> None:
    async with pair_of(folder, tensor_parallel_size=2) as pair:
        nodes = pair.nodes()
        gathering = asyncio.create_task(asyncio.to_thread(nodes.gather, fingerprint(folder)))
        told = "is refused: node 1 was started with tensor_parallel_size 2, and node 0 with 4"
        await until(lambda: told in caplog.text and "waiting for node 1 of 2" in caplog.text)
        assert not gathering.done()
        await until(lambda: pair.other.actors == [])
        right = NodeActor(SimpleNamespace(settings=pair.settings.replaced(tensor_parallel_size=4)))  # type: ignore[arg-type]
        await pair.other.spawn(right, WORKER_NODE)
        await gathering


async def test_a_node_without_a_mesh_is_not_ready_and_says_where_it_looks(folder: Path) -> None:
    async with pair_of(folder) as pair:
        assert pair.actor.ready() == []
        pair.actor._context.directory.connected = False  # type: ignore[misc]
        (why,) = pair.actor.ready()
        assert why.startswith("no mesh is found at tcp://127.0.0.1:29501")


async def test_what_is_no_order_of_ranks_is_refused_before_anything_starts(
    folder: Path, processes: list[FakeProcesses]
) -> None:
    wrong: list[dict[str, Any]] = [{"executor": "os.system"}, {"quantization": "x"}, {"options": {"taps": [1]}}]
    async with pair_of(folder) as pair:
        for changes in wrong:
            with pytest.raises(MeshError):
                async with pair.ref.stream(msgspec.structs.replace(TOLD, **changes), timeout=5.0) as items:
                    await anext(items)
    assert processes == []
