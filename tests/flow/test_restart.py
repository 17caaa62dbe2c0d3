"""A proposer that is killed under traffic is back before anyone looks, whoever of its two processes dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import aiohttp
import pytest
from running_mesh import RunningMesh, has_ended, running_mesh, until
from sse_client import Answer, body, complete

from bench.running_mesh import descendants, is_parent, parent_of

MOCK = '{"step_ms": 2, "acceptance": 0.6, "vocab_size": 49152}'
LONG = 60.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = tmp_path_factory.mktemp("mesh")
    with running_mesh(folder, engine="mock", mock_profile=MOCK, draft_deadline_ms=200) as mesh:
        yield mesh


@pytest.mark.parametrize("whom", ["the one that works", "the one it is forked from"])
async def test_a_killed_proposer_is_followed_by_another_that_is_asked(mesh: RunningMesh, whom: str) -> None:
    worker, parent = two_processes(mesh)
    killed = seen_killed(mesh)
    async with aiohttp.ClientSession() as session, asyncio.timeout(180):
        plain = await complete(session, mesh.url, asked())
        running = asyncio.ensure_future(several(session, mesh))
        os.kill(worker if whom == "the one that works" else parent, signal.SIGKILL)
        assert_same(await running, plain)
        mesh.wait_for_another("proposer", worker)
        # It answers, and its answers are used.
        before = answered(mesh)
        while answered(mesh) < before + 20:
            assert_same(await several(session, mesh), plain)
    until(lambda: has_ended(worker), LONG, why=lambda: f"{worker} is left")
    same_parent = parent_of(mesh.pid("proposer")) == parent
    assert same_parent == (whom == "the one that works")
    # `up` has seen what ended, and nothing else.
    assert seen_killed(mesh) - killed == (not same_parent)
    assert "failed" not in mesh.text()


def test_both_processes_of_a_proposer_end_when_up_is_killed(mesh: RunningMesh) -> None:
    """The mesh of the tests before it: the last of them."""
    left = descendants(mesh.process.pid)
    assert {mesh.pid("proposer"), parent_of(mesh.pid("proposer"))} <= left.keys()
    mesh.process.kill()
    until(lambda: all(map(has_ended, left)), LONG, why=lambda: f"of these some are left: {left}")


def seen_killed(mesh: RunningMesh) -> int:
    return mesh.text().count("proposer-1  | killed by SIGKILL")


def two_processes(mesh: RunningMesh) -> tuple[int, int]:
    worker = mesh.pid("proposer")
    parent = parent_of(worker)
    assert is_parent(parent) and parent_of(parent) == mesh.process.pid
    return worker, parent


def asked() -> dict[str, object]:
    return body("again and again and again", max_tokens=200, ignore_eos=True, speculation={"method": "ngram"})


async def several(session: aiohttp.ClientSession, mesh: RunningMesh) -> list[Answer]:
    return await asyncio.gather(*(complete(session, mesh.url, asked()) for _ in range(3)))


def answered(mesh: RunningMesh) -> float:
    seen = mesh.metrics("worker")
    lost = sum(seen.get(f"specmesh:draft_{what}_total", 0.0) for what in ("failures", "deadline_misses"))
    return seen.get("specmesh:draft_requests_total", 0.0) - lost


def assert_same(answers: list[Answer], plain: Answer) -> None:
    for answer in answers:
        assert answer.completed and answer.ends == 1 and answer.text == plain.text
