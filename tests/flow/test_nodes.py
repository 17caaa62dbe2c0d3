"""A worker on two nodes, through the whole mesh: the text of one machine, and streams that go on when a rank of the
other node, the process that keeps it or the worker is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import one_process
import pytest
from far_worker import HERE, Link
from other_nodes import OtherNode, other_node
from running_mesh import RunningMesh, running_mesh, until
from test_deaths import all_complete_and_equal, run_all, struck_under_way
from test_gpu_executor import PROMPTS, SAMPLING, all_at_once
from test_tensor_parallel import SETTINGS, WIDER
from tiny_folder import write_tiny_model

from bench.running_mesh import free_ports
from mesh.security import make_keys
from services.api.nodes import WORKER_NODE
from services.api.settings import ROLES

KEYS = (*ROLES, WORKER_NODE)
Pair = tuple[RunningMesh, OtherNode]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", **WIDER)


@contextmanager
def two_nodes(model: Path, folder: Path, address: str) -> Iterator[Pair]:
    make_keys(folder / "keys", KEYS)
    shared: dict[str, Any] = {
        "model": model, "tensor_parallel_size": 2, "nnodes": 2, "master_addr": address,
        "master_port": free_ports(1), "keys_dir": folder / "keys", **SETTINGS,
    }  # fmt: skip
    with other_node(folder / "node.log", **shared) as node, running_mesh(folder, **shared) as mesh:
        yield mesh, node


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_nodes(model, tmp_path_factory.mktemp("mesh"), "127.0.0.1") as made:
        yield made


def test_text_is_that_of_one_process_with_drafts_and_without(pair: Pair, model: Path) -> None:
    mesh, node = pair
    assert len(node.ranks()) == 1 and mesh.metrics("worker")["specmesh:ranks"] == 2
    assert "node 1 of 2: rank 1 of the worker at 127.0.0.1; no API here" in node.text()
    found = {method: all_at_once(mesh, method) for method in ("naive", "ngram", "auto")}
    assert found == dict.fromkeys(found, one_process.texts(model, PROMPTS, SAMPLING, "compiled"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="the system has no IPv6")
def test_nodes_may_meet_at_an_ipv6_address(model: Path, tmp_path: Path) -> None:
    with two_nodes(model, tmp_path, "::1") as (mesh, node):
        assert len(node.ranks()) == 1 and "worker at ::1" in node.text()
        assert all_at_once(mesh, "ngram") == one_process.texts(model, PROMPTS, SAMPLING, "compiled")


@pytest.fixture(scope="module")
def calm(pair: Pair) -> list[str]:
    said = asyncio.run(run_all(pair[0], 160, streams=4, speculation={"method": "naive"}, model="tiny"))
    return [answer.text for answer in said]


# A rank of one node: test_tensor_parallel.py.
@pytest.mark.parametrize("struck", [pytest.param("rank", marks=pytest.mark.slow), "node", "worker"])
async def test_streams_go_on_when_any_of_it_is_killed(pair: Pair, calm: list[str], struck: str) -> None:
    mesh, node = pair

    async def strike() -> None:
        worker, (rank,) = mesh.pid("worker"), node.ranks()
        os.kill({"rank": rank, "node": node.process.pid, "worker": worker}[struck], signal.SIGKILL)
        if struck == "node":
            await asyncio.to_thread(node.restart)
        await asyncio.to_thread(mesh.wait_for_another, "worker", worker)
        # By itself: the node has begun anew with the new worker.
        await asyncio.to_thread(until, lambda: node.ranks() not in ([], [rank]), 60.0, node.text)

    answers = await struck_under_way(mesh, 160, 4, strike, speculation={"method": "ngram"}, model="tiny")
    all_complete_and_equal(answers, calm)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
async def test_streams_go_on_across_a_network_that_was_cut(model: Path, tmp_path: Path) -> None:
    """The other node is in a network of its own, with keys. While the link is down nothing says that it is."""
    make_keys(tmp_path / "keys", KEYS)
    shared: dict[str, Any] = {
        "model": model, "tensor_parallel_size": 2, "nnodes": 2, "master_addr": f"{HERE}:{free_ports(1)}",
        "keys_dir": tmp_path / "keys", **SETTINGS,
    }  # fmt: skip
    link = Link()
    try:
        within = ("ip", "netns", "exec", link.namespace)
        with (
            other_node(tmp_path / "node.log", within=within, **shared) as node,
            running_mesh(tmp_path, **shared) as mesh,
        ):
            calm = await run_all(mesh, 160, streams=4, speculation={"method": "naive"}, model="tiny")
            expected = [answer.text for answer in calm]

            worker, (rank,) = mesh.pid("worker"), node.ranks()

            async def cut() -> None:
                link.cut()
                # The streams may have ended just before: only a step that needs the rank finds that it is gone.
                later = run_all(mesh, 160, streams=1, speculation={"method": "ngram"}, model="tiny")
                asking = asyncio.create_task(later)
                await asyncio.to_thread(mesh.wait_for_another, "worker", worker)
                link.mend()
                all_complete_and_equal(await asking, expected[:1])
                await asyncio.to_thread(until, lambda: node.ranks() not in ([], [rank]), 90.0, node.text)

            answers = await struck_under_way(mesh, 160, 4, cut, speculation={"method": "ngram"}, model="tiny")
            all_complete_and_equal(answers, expected)
    finally:
        link.remove()
