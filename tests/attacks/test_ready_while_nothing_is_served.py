"""The directory's table says that all are ready, and nothing is served: /health/ready must say so."""

from __future__ import annotations

import aiohttp
import pytest
from fake_mesh import FakeMesh, says, until

from services.streamer.choice import peers
from services.streamer.extras import probe


async def ready(http: aiohttp.ClientSession, mesh: FakeMesh) -> tuple[int, list[str]]:
    async with http.get(mesh.url + "/health/ready") as answer:
        return answer.status, (await answer.json())["reasons"]


async def test_a_worker_whose_engine_takes_no_more_mail(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERY", "AGAIN"):
        monkeypatch.setattr(probe, name, 0.01)
    monkeypatch.setattr(peers, "PROBE_TIMEOUT", 0.05)
    target = await mesh.start_target(says("yes"))
    door = await mesh.start_door()
    assert await ready(http, mesh) == (200, [])

    target.describes.clear()
    await until(lambda: door._health().status == 503)
    assert await ready(http, mesh) == (503, ["worker: worker-1 doesn't answer (deadline)"])

    target.describes.set()
    await until(lambda: door._health().status == 200)


async def test_a_directory_that_was_silent_for_a_while(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    """Requests go on with the last table."""
    await mesh.start_target(says("yes"))
    await mesh.start_door()
    mesh.directory.silence = 6.0
    assert await ready(http, mesh) == (503, ["directory: silent for 6.0 s"])
    async with http.post(mesh.url + "/v1/completions", json={"model": "tiny", "prompt": "hello"}) as answer:
        assert answer.status == 200
    mesh.directory.silence = 0.4
    assert await ready(http, mesh) == (200, [])
