"""A new proposer takes over from the running one as an operator does it: started beside it, which gives it its part of
the namespaces, and the old one killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from running_mesh import RunningMesh, running_mesh
from sse_client import Answer, body, complete

from bench.running_mesh import ROOT, free_ports

MOCK = '{"step_ms": 2, "acceptance": 0.6, "vocab_size": 49152}'


@contextmanager
def successor(folder: Path) -> Iterator[str]:
    """The URL of its metrics."""
    port = free_ports(1)
    flags = {
        "run-dir": folder / "run",
        "store-dir": folder / "store",
        "method": "ngram",
        "instance": "proposer-new",
        "metrics-port": port,
    }
    command = [sys.executable, "-m", "services.cli", "run", "proposer"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    with (folder / "successor.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in flags.items())],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0, (folder / "successor.log").read_text()


async def test_a_successor_takes_over_while_requests_run_and_no_request_notices(tmp_path: Path) -> None:
    settings = {"engine": "mock", "mock_profile": MOCK, "method": "ngram", "draft_deadline_ms": 200}
    with running_mesh(tmp_path, **settings) as mesh, successor(tmp_path) as metrics:
        async with aiohttp.ClientSession() as session, asyncio.timeout(180):
            plain = await complete(session, mesh.url, asked({"method": "naive"}))
            while not await batches(session, metrics):
                assert_same(await several(session, mesh), plain)
            # The old one is not needed any more. It is killed, and started again.
            before = mesh.metrics("worker")
            running = asyncio.ensure_future(several(session, mesh))
            mesh.kill("proposer")
            assert_same(await running, plain)
            answers = await several(session, mesh)
            assert_same(answers, plain)
            assert all((answer.speculation or {})["num_accepted_draft_tokens"] for answer in answers)
            seen = mesh.metrics("worker")
            assert seen["specmesh:draft_requests_total"] > before["specmesh:draft_requests_total"]


async def batches(session: aiohttp.ClientSession, metrics: str) -> float:
    """Requests that a proposer has answered; 0 while it isn't there yet."""
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get(metrics) as answer:
            for line in (await answer.text()).splitlines():
                if line.startswith("specmesh:proposer_batch_seconds_count"):
                    return float(line.split()[-1])
    return 0.0


def asked(speculation: dict[str, object]) -> dict[str, object]:
    return body("again and again and again", max_tokens=200, ignore_eos=True, speculation=speculation)


async def several(session: aiohttp.ClientSession, mesh: RunningMesh) -> list[Answer]:
    """In several namespaces: each proposer owns some of them."""
    return await asyncio.gather(
        *(complete(session, mesh.url, asked({"namespace": f"n{number}"})) for number in range(6))
    )


def assert_same(answers: list[Answer], plain: Answer) -> None:
    for answer in answers:
        assert answer.completed and answer.ends == 1 and answer.text == plain.text
