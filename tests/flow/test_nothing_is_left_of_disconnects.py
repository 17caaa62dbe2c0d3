"""Thousands of requests are hung up in the middle: afterwards no process holds more files or threads than before, and
every count of what runs is zero. The mock engine, whole mesh."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from bench.running_mesh import ROLES, ROOT, RunningMesh, open_files, running_mesh, threads

DISCONNECTS, STREAMS = 2000, 32
SETTLE_SECONDS = 30.0
# Gauges that must be 0 when no request runs, wherever a process serves them. Every running handler and stream
# is a task, and counts in bus_mailbox_depth or bus_streams_open; every request at the door is one, too.
AT_REST = (
    "specmesh:num_requests_running",
    "specmesh:num_requests_waiting",
    "specmesh:kv_cache_usage_perc",
    "specmesh:door_requests_running",
    "specmesh:http_connections",
    "specmesh:proposer_sequences",
    "specmesh:bus_mailbox_depth",
    "specmesh:bus_streams_open",
    "specmesh:bus_outbox_bytes",
    "specmesh:bus_credits_outstanding_bytes",
)


def counts_of(mesh: RunningMesh) -> dict[str, float]:
    counts: dict[str, float] = {}
    for role, pid in mesh.processes().items():
        counts[f"files {role}"] = open_files(pid)
        counts[f"threads {role}"] = threads(pid)
    for role in ROLES:
        samples = mesh.metrics(role)
        counts |= {f"gauge {role} {name}": samples[name] for name in AT_REST if name in samples}
    return counts


def left_over(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """What is there after a run that was not before it, or should be zero and is not."""
    found = []
    for name, value in after.items():
        if name.startswith("gauge ") and value:
            found.append(f"{name} is {value:g}")
        elif value > before.get(name, 0.0):
            found.append(f"{name} was {before.get(name, 0.0):g} and is {value:g}")
    return found


def settled(mesh: RunningMesh, before: dict[str, float]) -> dict[str, float]:
    """The counts once they are at rest, or after a while."""
    end = time.monotonic() + SETTLE_SECONDS
    while left_over(before, counts := counts_of(mesh)) and time.monotonic() < end:
        time.sleep(1.0)
    return counts


def hang_up(mesh: RunningMesh, requests: int, share: float) -> None:
    command = [
        sys.executable, "-m", "loadtest", mesh.url, "--quiet", "--ignore-eos", f"--concurrency={STREAMS}",
        "--max-tokens=400", "--max-error-rate=1", f"--requests={requests}", f"--disconnect={share}", "--timeout=120",
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_nothing_is_left_of_requests_that_were_hung_up() -> None:
    profile = '{"step_ms": 0, "row_us": 0, "acceptance": 0.6, "vocab_size": 49152}'
    with running_mesh(engine="mock", mock_profile=profile, max_waiting=4 * STREAMS) as mesh:
        # Once before, so that what is opened once and kept is not taken for a leak.
        hang_up(mesh, 2 * STREAMS, 0.9)
        before = settled(mesh, counts_of(mesh))
        hang_up(mesh, DISCONNECTS, 1.0)
        after = settled(mesh, before)
    # A renamed gauge must not pass for one that is zero.
    assert {name.rpartition(" ")[2] for name in after if name.startswith("gauge ")} == set(AT_REST)
    assert left_over(before, after) == []
