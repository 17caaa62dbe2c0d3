"""What one mesh is asked in one turn of a comparison, and what is measured of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from bench.running_mesh import ROOT, RunningMesh
from bench.streams import Heard, Refused, listen
from bench.workloads import WORKLOADS, salt_of
from loadtest.workloads import Body

SEED = 5
# Requests of a block where they come one after the other.
ONE_BY_ONE = 2
MESH_STREAMS, MESH_TOKENS, MESH_SECONDS = 64, 400, 3
FIRST_TOKEN_REQUESTS = 80


class Block(NamedTuple):
    """`speed`: tokens a second, or first tokens a second; 0 where a request failed."""

    speed: float
    first_token_s: float
    texts: list[str]
    failed: int


def requests(
    name: str, workload: str, at_a_time: int, method: str, tokens: int, salt: str
) -> Callable[[RunningMesh, int], Block]:
    """Blocks of the real model. Every turn has other requests, and both meshes get the same in a turn."""
    size = max(at_a_time, ONE_BY_ONE)
    wish = {"model": name, "speculation": {"method": method}, "temperature": 0}

    def measure(mesh: RunningMesh, turn: int) -> Block:
        first = turn * size
        bodies = WORKLOADS[workload].requests(first + size, SEED)[first:]
        own = [{"cache_salt": salt_of(workload, salt, number)} for number in range(first, first + size)]
        asked = [
            {**body, **wish, **salted, "max_tokens": min(tokens, body["max_tokens"])}
            for body, salted in zip(bodies, own, strict=True)
        ]
        with ThreadPoolExecutor(at_a_time) as callers:
            return block_of(list(callers.map(lambda body: ask(mesh, body), asked)))

    return measure


def ask(mesh: RunningMesh, body: Body) -> Heard | None:
    try:
        return listen(mesh.port, body)
    except (OSError, Refused) as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return None


def block_of(answers: list[Heard | None]) -> Block:
    heard = [each for each in answers if each is not None]
    if len(heard) < len(answers):
        return Block(0.0, 0.0, [], len(answers) - len(heard))
    seconds = max(each.ended for each in heard) - min(each.sent for each in heard)
    first = sum(each.first - each.sent for each in heard) / len(heard)
    return Block(sum(each.tokens for each in heard) / seconds, first, [each.text for each in heard], 0)


def mesh_tokens(method: str) -> Callable[[RunningMesh, int], Block]:
    """Tokens a second of the mesh alone."""
    flags = [f"--concurrency={MESH_STREAMS}", f"--max-tokens={MESH_TOKENS}", f"--duration={MESH_SECONDS}"]

    def measure(mesh: RunningMesh, turn: int) -> Block:
        seen = load(mesh, [*flags, "--speculation=" + json.dumps({"method": method})])
        return loaded(seen, lambda seen: float(seen["throughput"]["output_tokens_per_s"]))

    return measure


def first_token() -> Callable[[RunningMesh, int], Block]:
    """First tokens a second of one caller: 1 / the median time to the first token."""
    flags = ["--concurrency=1", "--max-tokens=2", f"--requests={FIRST_TOKEN_REQUESTS}"]

    def measure(mesh: RunningMesh, turn: int) -> Block:
        return loaded(load(mesh, flags), lambda seen: 1 / float(seen["ttft_s"]["p50"]))

    return measure


def load(mesh: RunningMesh, flags: list[str]) -> dict[str, Any] | None:
    """The harness of the working tree loads both meshes. None: it could not, and says why."""
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "loadtest", mesh.url, f"--json={file}", "--quiet", "--ignore-eos"]
        done = subprocess.run(
            [*command, "--max-error-rate=1", "--timeout=60", *flags], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        return None if done.returncode else dict(json.loads(file.read_text()))


def loaded(seen: dict[str, Any] | None, speed: Callable[[dict[str, Any]], float]) -> Block:
    if seen is None or seen["requests"]["failed"] or not seen["ttft_s"]:
        return Block(0.0, 0.0, [], max(1, seen["requests"]["failed"]) if seen else 1)
    return Block(speed(seen), seen["ttft_s"]["p50"], [], 0)
