"""A worker's ranks on two nodes, each a process tree of its own: the bits of one machine, and an end for all when one
of them ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from other_nodes import OtherNode, other_node
from running_mesh import has_ended, until
from test_ranks import loaded, said
from tiny_folder import write_tiny_model

from bench.running_mesh import free_ports
from mesh.directory import DIRECTORY, DirectoryActor, DirectoryClient
from mesh.node import Node
from mesh.security import load_security, make_keys
from mesh.transport.zmq import ZmqTransport
from models import group
from models.group import distant_meeting_place, open_meeting_place
from services.api.nodes import WORKER_NODE
from services.runtime.process import mesh_codec
from services.worker.parallel.nodes import Nodes
from services.worker.parallel.processes import RankProcesses
from services.worker.parallel.rank import Start
from services.worker.running.torch_model import TorchModel

HERE = "127.0.0.1"
T = TypeVar("T")


class Mesh:
    """A directory, and the end of a worker that looks for its nodes in it, in a thread with a loop of its own."""

    def __init__(self, folder: Path) -> None:
        self.port, self._keys = free_ports(1), folder / "keys"
        make_keys(self._keys, ["worker", WORKER_NODE])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._open())

    def flags(self, folder: Path, ranks: int = 2, **more: Any) -> dict[str, Any]:
        """Of the other node."""
        return {
            "model": folder, "tensor_parallel_size": ranks, "nnodes": 2, "master_addr": f"{HERE}:{self.port}",
            "dtype": "float32", "threads": 2, "keys_dir": self._keys, **more,
        }  # fmt: skip

    def nodes(self, ranks: int = 2) -> Nodes:
        return self._do(self._made(ranks))

    def leave(self, nodes: Nodes) -> None:
        """As a worker that ends."""
        self._loop.call_soon_threadsafe(nodes.close)

    def close(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _open(self) -> None:
        security = load_security(self._keys, "worker")
        self._own, self._worker = (
            Node(ZmqTransport(security=security), mesh_codec(), name=name) for name in (DIRECTORY, "worker-1")
        )
        at = f"tcp://{HERE}:{self.port}"
        await self._own.start(at)
        await self._own.spawn(DirectoryActor(), DIRECTORY)
        await self._worker.start()
        self._directory = DirectoryClient(self._worker, at)
        await self._directory.start()

    async def _made(self, ranks: int) -> Nodes:
        return Nodes(self._worker, self._directory, HERE, self.port, 2, ranks)

    async def _end(self) -> None:
        await self._directory.stop()
        await self._worker.stop(0.5)
        await self._own.stop(0.5)


@contextmanager
def mesh_at(folder: Path) -> Iterator[Mesh]:
    mesh = Mesh(folder)
    try:
        yield mesh
    finally:
        mesh.close()


def bits(model: TorchModel) -> list[torch.Tensor]:
    """Of a text's logits, with a prompt in two chunks."""
    found: list[torch.Tensor] = []
    forward = model.forward

    def kept(rows: Any) -> Any:
        output = forward(rows)
        found.append(output.logits.clone())
        return output

    model.forward = kept  # type: ignore[method-assign]
    said(model)
    return found


# One rank on each is what tests/flow/test_nodes.py has.
ONE_ON_EACH = pytest.param("plain", 2, marks=pytest.mark.slow)


@pytest.mark.parametrize(("executor", "ranks"), [ONE_ON_EACH, pytest.param("compiled", 4, marks=pytest.mark.slow)])
def test_ranks_on_two_nodes_compute_the_bits_of_as_many_on_one(executor: str, ranks: int, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    with torch.inference_mode():
        with loaded(model, executor=executor, ranks=ranks) as (one, _):
            expected, path = bits(one), one.facts.path
        with (
            mesh_at(tmp_path) as mesh,
            other_node(tmp_path / "node.log", **mesh.flags(model, ranks)) as node,
            loaded(model, executor=executor, ranks=ranks, nodes=mesh.nodes(ranks)) as (two, own),
        ):
            assert own is not None
            assert len(node.ranks()) == ranks // 2 and len(own.processes.running) == ranks // 2 - 1
            assert two.facts.path == path
            found = bits(two)
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


class Held:
    """A worker that loads in a thread, as it does in its process."""

    def __init__(self, mesh: Mesh, model: Path) -> None:
        self.lost: list[str] = []
        self.noticed, self.over, self.ready = threading.Event(), threading.Event(), threading.Event()
        self._nodes = mesh.nodes()
        self._thread = threading.Thread(target=self._run, args=(mesh, model), daemon=True)
        self._thread.start()

    def _note(self, reason: str) -> None:
        self.lost.append(reason)
        self.noticed.set()

    def _run(self, mesh: Mesh, model: Path) -> None:
        options = {"executor": "plain", "ranks": 2, "nodes": self._nodes}
        with torch.inference_mode(), loaded(model, self._note, **options) as (made, _):
            self.text = said(made)
            self.ready.set()
            assert self.over.wait(300)
        mesh.leave(self._nodes)

    def close(self) -> None:
        self.over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_another_model_a_wrong_number_and_other_keys_are_refused_by_name_and_the_right_one_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, other = write_tiny_model(tmp_path / "tiny"), write_tiny_model(tmp_path / "other", num_hidden_layers=3)
    make_keys(tmp_path / "strange", ["worker", WORKER_NODE])
    wrong = {
        "another model: other beside tiny, with another config.json": {"model": other},
        "tensor_parallel_size 4, and node 0 with 2": {"tensor_parallel_size": 4},
        "nnodes 3, and node 0 with 2": {"nnodes": 3, "tensor_parallel_size": 3},
    }
    with mesh_at(tmp_path) as mesh:
        worker = Held(mesh, model)
        try:
            for told, flags in wrong.items():
                node = OtherNode(tmp_path / "wrong.log", **{**mesh.flags(model), **flags})
                assert node.process.wait(120) == 1
                assert told in node.text() and told in caplog.text
            with other_node(tmp_path / "keys.log", **mesh.flags(model, keys_dir=tmp_path / "strange")) as node:
                node.wait_for(f"no mesh is found at tcp://{HERE}:{mesh.port}")
                assert node.stop() == 0
            assert not worker.ready.is_set()
            with other_node(tmp_path / "right.log", **mesh.flags(model)):
                assert worker.ready.wait(120)
                worker.close()
        finally:
            worker.over.set()
        assert worker.lost == []


def test_a_node_outlives_workers_and_ranks_joins_the_next_worker_and_ends_when_asked(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    with mesh_at(tmp_path) as mesh, other_node(tmp_path / "node.log", **mesh.flags(model)) as node:

        def joined() -> tuple[Held, int]:
            worker = Held(mesh, model)
            assert worker.ready.wait(120)
            (rank,) = node.ranks()
            return worker, rank

        worker, first = joined()
        worker.close()
        until(lambda: has_ended(first), 30.0, why=node.text)
        assert worker.lost == []

        worker, second = joined()
        assert second != first
        os.kill(second, signal.SIGKILL)
        assert worker.noticed.wait(60)
        worker.close()
        assert len(worker.lost) == 1 and worker.lost[0].startswith(f"node 1 ({HERE})")
        assert "rank 1 ended with -9" in worker.lost[0]

        worker, _ = joined()
        assert node.stop() == 0
        assert worker.noticed.wait(60) and "node 1" in worker.lost[0]
        worker.close()


def test_a_node_that_is_killed_is_noticed_without_a_request_and_joins_again(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    with mesh_at(tmp_path) as mesh, other_node(tmp_path / "node.log", **mesh.flags(model)) as node:
        worker = Held(mesh, model)
        assert worker.ready.wait(120)
        (rank,) = node.ranks()
        os.kill(node.process.pid, signal.SIGKILL)
        assert worker.noticed.wait(60)
        until(lambda: has_ended(rank), 30.0, why=node.text)
        worker.close()
        assert len(worker.lost) == 1 and worker.lost[0].startswith(f"node 1 ({HERE})")
        assert "ended with" not in worker.lost[0]
        node.restart()
        again = Held(mesh, model)
        assert again.ready.wait(120) and node.ranks() not in ([], [rank]) and again.text == worker.text
        again.close()
        assert again.lost == []


def test_a_rank_of_an_older_worker_joins_no_newer_one(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    store, port = open_meeting_place(HERE, "newer")
    nobody = store.num_keys()
    options = {
        "dtype": "float32", "pages": 4, "page_tokens": 16, "max_context": 64, "threads": 1, "strict": True,
        "branch_pages": 0, "kv_dtype": "", "graph_rows": 1, "states": 4, "longest_draft": 8,
        "amx": True, "same_bits": False,
    }  # fmt: skip
    lost: list[str] = []
    stale = RankProcesses(lost.append)
    stale.start(
        Start(os.getpid(), 1, 2, 0, HERE, port, "older", HERE, str(model), "plain", "none", False, options)
    )
    try:
        # It has come first, and has said where it is.
        until(lambda: store.num_keys() > nobody, 60.0, why=lambda: lost)
        with ThreadPoolExecutor() as pool:
            first = pool.submit(group.join, store, 0, 2, True)
            second = pool.submit(group.join, distant_meeting_place(HERE, port, "newer"), 1, 2, True)
            one, two = first.result(60), second.result(60)
            words = torch.arange(3)
            told = pool.submit(one.tell, words)
            heard = torch.zeros(3, dtype=torch.int64)
            two.tell(heard)
            told.result(60)
        assert heard.equal(words) and lost == []
    finally:
        stale.end()
