"""Workers come when requests wait in their queues, and go when none does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils", reason="make ray")

from ray_mesh import RayMesh, ray_mesh, three_machines
from running_mesh import until
from test_deaths import ALONE, all_complete_and_equal, calm_texts, run_all

# Two at a time, which take two seconds each: 24 of them wait 12 s at two workers.
SLOW = '{"step_ms": 20, "vocab_size": 49152}'
MOCK = {"engine": "mock", "mock_profile": SLOW, "max_sequences": 2, "worker_cpus": 1}
STREAMS, TOKENS, MOST = 24, 100, 3


async def test_a_queue_brings_workers_up_to_the_most_and_its_end_takes_them_away(tmp_path: Path) -> None:
    with (
        three_machines() as cluster,
        ray_mesh(cluster, tmp_path, min_workers=1, max_workers=MOST, scale_down_after=3, **MOCK) as mesh,
    ):
        assert ready(mesh) == 1
        expected = await calm_texts(mesh, TOKENS, streams=STREAMS)
        for _ in range(20):
            all_complete_and_equal(await run_all(mesh, TOKENS, streams=STREAMS, speculation=ALONE), expected)
            if await asyncio.to_thread(ready, mesh) == MOST:
                break
        assert await asyncio.to_thread(ready, mesh) == MOST
        told = await asyncio.to_thread(mesh.command, "status", f"--port={mesh.port}")
        assert told.returncode == 0 and f"autoscaling: 1 to {MOST} workers, " in told.stdout
        # Requests that run meanwhile go on: one at a time is no queue.
        while await asyncio.to_thread(ready, mesh) > 1:
            all_complete_and_equal(await run_all(mesh, TOKENS, streams=1, speculation=ALONE), expected[:1])
        await asyncio.to_thread(until, lambda: len(mesh.watchers()) == 1, 60.0, lambda: mesh.text()[-4000:])
        for change in ("1 → 2: requests wait", "2 → 3: requests wait", "3 → 2: no", "2 → 1: no"):
            assert f"worker: {change} " in mesh.text()
        all_complete_and_equal(await run_all(mesh, TOKENS, streams=STREAMS, speculation=ALONE), expected)


def ready(mesh: RayMesh) -> int:
    return sum(each["state"] == "ready" for each in mesh.watchers())
