from __future__ import annotations

import aiohttp
import pytest
from fake_mesh import MODEL, FakeMesh, failed, hangs_after, says, until

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
LABELS = {"model_name": MODEL}


def value(mesh: FakeMesh, name: str, **labels: str) -> float:
    return mesh.registry.get_sample_value(f"specmesh:{name}", {**LABELS, **labels}) or 0.0


async def test_a_request_is_measured_under_the_names_dashboards_know(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await mesh.start_target(says("hello the fox"))
    await mesh.start_door()
    async with http.post(mesh.url + "/v1/chat/completions", json=CHAT) as response:
        await response.read()
    assert value(mesh, "time_to_first_token_seconds_count") == 1
    assert value(mesh, "inter_token_latency_seconds_count") == 3  # three tokens, and the end
    assert value(mesh, "e2e_request_latency_seconds_count") == 1
    assert value(mesh, "request_generation_tokens_sum") == 4
    assert value(mesh, "request_success_total", finished_reason="stop") == 1
    sample = mesh.registry.get_sample_value(
        "specmesh:http_responses_total", {"route": "/v1/chat/completions", "code": "200"}
    )
    assert sample == 1


async def test_the_buckets_are_those_of_other_servers(mesh: FakeMesh) -> None:
    await mesh.start_door()
    assert value(mesh, "time_to_first_token_seconds_bucket", le="0.02") == 0
    assert mesh.registry.get_sample_value(
        "specmesh:inter_token_latency_seconds_bucket", {**LABELS, "le": "0.025"}
    ) == 0  # fmt: skip


async def test_a_client_that_leaves_is_an_abort(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(hangs_after("h"))
    door = await mesh.start_door()
    async with http.post(mesh.url + "/v1/chat/completions", json={**CHAT, "stream": True}):
        await target.began.wait()
        assert value(mesh, "door_requests_running") == 1
    await until(lambda: door.load() == 0)
    assert value(mesh, "request_success_total", finished_reason="abort") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_request_is_an_error(mesh: FakeMesh, http: aiohttp.ClientSession, stream: bool) -> None:
    async def fails(target: object, message: object, out: object) -> None:
        await out.send(failed(message, "engine"))  # type: ignore[attr-defined,arg-type]

    await mesh.start_target(fails)
    await mesh.start_door()
    async with http.post(mesh.url + "/v1/chat/completions", json={**CHAT, "stream": stream}) as response:
        assert response.status == 500
    assert value(mesh, "request_success_total", finished_reason="error") == 1
