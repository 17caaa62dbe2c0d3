"""A new proposer takes over from the running one as an operator does it: started beside it, and the old one killed."""

from __future__ import annotations

import asyncio
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
def successor(mesh: RunningMesh, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    flags = {
        "run-dir": folder / "run",
        "store-dir": folder / "store",
        "method": "ngram",
        "instance": "proposer-new",
        "metrics-port": free_ports(1),
    }
    command = [sys.executable, "-m", "services.cli", "run", "proposer", "--successor"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    with (folder / "successor.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in flags.items())],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0, (folder / "successor.log").read_text()


async def test_a_successor_takes_over_while_requests_run_and_no_request_notices(tmp_path: Path) -> None:
    settings = {"engine": "mock", "mock_profile": MOCK, "method": "ngram", "draft_deadline_ms": 200}
    with running_mesh(tmp_path, **settings) as mesh, successor(mesh, tmp_path):
        async with aiohttp.ClientSession() as session, asyncio.timeout(180):
            plain = await complete(session, mesh.url, asked({"method": "naive"}))
            while not mesh.metrics("worker").get("specmesh:proposer_takeovers_total"):
                assert_same(await several(session, mesh), plain)
            # The old one is of no use any more; that it goes, and comes again, changes nothing.
            before = mesh.metrics("worker")
            running = asyncio.ensure_future(several(session, mesh))
            mesh.kill("proposer")
            assert_same(await running, plain)
            answers = await several(session, mesh)
            assert_same(answers, plain)
            assert all((answer.speculation or {})["num_accepted_draft_tokens"] for answer in answers)
            seen = mesh.metrics("worker")
            assert seen["specmesh:proposer_takeovers_total"] == 1
            assert seen["specmesh:draft_requests_total"] > before["specmesh:draft_requests_total"]
            assert seen["specmesh:draft_failures_total"] == before["specmesh:draft_failures_total"]


def asked(speculation: dict[str, object]) -> dict[str, object]:
    return body("again and again and again", max_tokens=200, ignore_eos=True, speculation=speculation)


async def several(session: aiohttp.ClientSession, mesh: RunningMesh) -> list[Answer]:
    return await asyncio.gather(*(complete(session, mesh.url, asked({})) for _ in range(3)))


def assert_same(answers: list[Answer], plain: Answer) -> None:
    for answer in answers:
        assert answer.completed and answer.ends == 1 and answer.text == plain.text
