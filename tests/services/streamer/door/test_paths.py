from __future__ import annotations

import aiohttp
import pytest
from fake_mesh import MODEL, FakeMesh, says

from services.streamer.door.http import find_route
from services.streamer.door.paths import no_such_path

KNOWN = [("POST", "/v1/chat/completions"), ("POST", "/v1/messages"), ("POST", "/v1/completions"),
         ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/v1/models/{model}"), ("GET", "/"),
         ("GET", "/page/{file}")]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/models", "/v1/models"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/metrics/", "/metrics"),
        ("/v1/metrics", "/metrics"),
        ("/v1/v1/messages", "/v1/messages"),
    ],
)
def test_a_path_that_is_nearly_right_is_told_the_right_one(path: str, meant: str) -> None:
    error = no_such_path("POST", path, KNOWN)
    assert (error.status, error.code) == (404, "not_found")
    assert error.message.startswith(f"There is nothing at {path}. Did you mean {meant}?")


@pytest.mark.parametrize("path", ["/v1", "/v1/"])
def test_the_base_url_says_what_is_below_it(path: str) -> None:
    message = no_such_path("GET", path, KNOWN).message
    assert message.endswith("below it are /v1/chat/completions, /v1/completions, /v1/messages, /v1/models")


def test_the_paths_of_other_servers_are_told_their_successor() -> None:
    assert "Use POST /v1/completions, with the text as prompt" in no_such_path("POST", "/generate", KNOWN).message
    assert "stream: true" in no_such_path("POST", "/generate_stream", KNOWN).message


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/completion", "POST /v1/completions"), ("/props", "GET /v1/models"), ("/slots", "GET /v1/mesh"),
     ("/embedding", "POST /v1/embeddings"), ("/pooling", "POST /v1/embeddings"),
     ("/apply-template", "POST /tokenize")],
)  # fmt: skip
def test_a_path_of_llama_server_is_told_a_route_that_is_there(path: str, meant: str) -> None:
    message = no_such_path("GET", path, KNOWN).message
    assert message.startswith(f"There is nothing at {path}. Use {meant}")
    method, served = meant.split()
    assert find_route(method, served).path == served


@pytest.mark.parametrize("path", ["/infill", "/v1/score", "/v1/rerank", "/v2/rerank", "/lora-adapters"])
def test_a_path_for_what_isnt_served_says_what_that_is(path: str) -> None:
    message = no_such_path("POST", path, KNOWN).message
    assert message.startswith(f"There is nothing at {path}. Not served: ") and "Did you mean" not in message


def test_any_other_path_is_told_what_is_served() -> None:
    message = no_such_path("GET", "/nowhere", KNOWN).message
    served = "/metrics, /v1/chat/completions, /v1/completions, /v1/messages, /v1/models, /v1/models/{model}"
    assert message == f"There is nothing at /nowhere. Served here: {served}"


def test_a_path_is_shown_on_one_line_and_short() -> None:
    message = no_such_path("GET", "/a\r\n\x1b[31mb" + "c" * 1000, KNOWN).message
    assert message.isprintable() and len(message) < 300


def test_a_known_path_with_another_method_says_which() -> None:
    error = no_such_path("GET", "/v1/completions", KNOWN)
    assert (error.status, error.message) == (405, "/v1/completions takes POST")


def test_a_probe_may_ask_for_the_headers_alone() -> None:
    assert find_route("HEAD", "/health") is find_route("GET", "/health")


@pytest.mark.parametrize("path", ["/health", "/ping", "/health/ready"])
async def test_probes_of_other_servers_are_answered(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str
) -> None:
    await mesh.start_door(api_keys="one")
    async with http.get(mesh.url + path) as response:
        assert response.status == 503
    await mesh.start_target(says("hello"))
    async with http.get(mesh.url + path) as response:
        assert response.status == 200 and (await response.json())["status"] in ("ready", "degraded")
    async with http.head(mesh.url + path) as response:
        assert response.status == 200 and await response.read() == b""


async def test_a_client_without_v1_in_its_base_url_is_told(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_door()
    async with http.post(mesh.url + "/chat/completions", json={"model": MODEL, "messages": []}) as response:
        assert response.status == 404
        assert "Did you mean /v1/chat/completions?" in (await response.json())["error"]["message"]
