"""Two workers that are real processes: when one of them is killed, stopped or drained under streams, these go on at the
other and say the same."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from printed import printed_blocks
from running_mesh import RunningMesh, running_mesh, until
from sse_client import Answer
from test_deaths import (
    ALONE,
    PROFILE,
    STREAMS,
    all_complete_and_equal,
    calm_texts,
    run_all,
    struck_under_way,
)

from bench.running_mesh import ROOT, descendants

KILLS = 50


def workers(mesh: RunningMesh) -> list[int]:
    found = descendants(mesh.process.pid)
    return sorted(pid for pid, command in found.items() if " run worker" in command)


def wait_for_two_workers(mesh: RunningMesh) -> None:
    """In the streamer's own view: it sends to both from now on."""

    def both() -> bool:
        status, text = mesh.get("/health/ready")
        return status == 200 and [each["state"] for each in json.loads(text)["roles"]["worker"]] == ["ready", "ready"]

    until(both, 240.0, why=lambda: f"no two workers are ready\n{mesh.text()[-4000:]}")


async def struck(mesh: RunningMesh, tokens: int, sig: signal.Signals, streams: int) -> list[Answer]:
    """While all streams run, one of the two gets the signal."""

    async def strike() -> None:
        os.kill(random.choice(workers(mesh)), sig)

    return await struck_under_way(mesh, tokens, streams, strike)


@pytest.fixture(scope="module")
def mock_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), engine="mock", mock_profile=PROFILE, workers=2) as mesh:
        wait_for_two_workers(mesh)
        yield mesh


@pytest.fixture(scope="module")
def calm(mock_pair: RunningMesh) -> list[str]:
    return asyncio.run(calm_texts(mock_pair, 600, streams=8))


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
async def test_streams_of_a_worker_that_is_killed_stopped_or_drained_go_on_at_the_other(
    mock_pair: RunningMesh, calm: list[str], sig: signal.Signals
) -> None:
    all_complete_and_equal(await struck(mock_pair, 600, sig, 8), calm)
    await asyncio.to_thread(wait_for_two_workers, mock_pair)


async def test_both_workers_have_work(mock_pair: RunningMesh) -> None:
    ports = [mock_pair.metrics_base + 3, mock_pair.metrics_base + 13]

    def served(port: int) -> float:
        _, text = mock_pair.get("/metrics", port)
        requests = [line for line in text.splitlines() if line.startswith("specmesh:worker_requests_total")]
        return sum(float(line.split()[-1]) for line in requests)

    await asyncio.to_thread(wait_for_two_workers, mock_pair)
    before = [served(port) for port in ports]
    await run_all(mock_pair, 20, streams=8, speculation=ALONE)
    after = [served(port) for port in ports]
    assert all(now > then for then, now in zip(before, after, strict=True)), (before, after)


async def test_workers_are_replaced_one_by_one_under_streams(mock_pair: RunningMesh) -> None:
    expected = await calm_texts(mock_pair, 200, streams=4)
    before = workers(mock_pair)
    # As docs/operate/operating.md tells to do it after an upgrade.
    [block] = printed_blocks("docs/operate/operating.md", Path(__file__))
    [told] = [shlex.split(command)[1:] for command in block]
    flags = [f"--run-dir={mock_pair.output.parent / 'run'}", f"--port={mock_pair.port}"]
    roll = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.cli", *told, *flags, cwd=ROOT)
    rolled = asyncio.create_task(roll.wait())
    while not rolled.done():
        all_complete_and_equal(await run_all(mock_pair, 200, streams=4, speculation=ALONE), expected)
    assert await rolled == 0
    assert not set(before) & set(workers(mock_pair))


@pytest.mark.slow
@pytest.mark.model
async def test_fifty_deaths_of_either_worker_fail_no_request_and_change_no_token(tmp_path: Path) -> None:
    with running_mesh(tmp_path, workers=2) as mesh:
        wait_for_two_workers(mesh)
        expected = await calm_texts(mesh, 120)
        for _ in range(KILLS):
            all_complete_and_equal(await struck(mesh, 120, signal.SIGKILL, STREAMS), expected)
            await asyncio.to_thread(wait_for_two_workers, mesh)
