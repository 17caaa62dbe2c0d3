"""Keys that come and go while the server runs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_mesh import MODEL, FakeMesh, FakeTarget, FakeTokenizer, says, until
from prometheus_client import generate_latest
from raw_sockets import BODY, answer, connect, head

from services.streamer.door.api_keys import ApiKeys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    return file


def replace(file: Path, text: str) -> None:
    """As a careful editor does."""
    fresh = file.with_name("fresh")
    fresh.write_text(text)
    os.replace(fresh, file)


async def statuses(mesh: FakeMesh, http: aiohttp.ClientSession, *keys: str) -> list[int]:
    found = []
    for key in keys:
        async with http.get(mesh.url + "/v1/models", headers={"Authorization": f"Bearer {key}"}) as response:
            found.append(response.status)
    return found


async def test_a_removed_key_is_refused_from_the_next_request_on(
    mesh: FakeMesh, http: aiohttp.ClientSession, file: Path
) -> None:
    await mesh.start_door(api_keys="own", api_keys_file=str(file))
    assert await statuses(mesh, http, "own", "one", "two", "three") == [200, 200, 200, 401]
    replace(file, "two\nthree\n")
    assert await statuses(mesh, http, "own", "one", "two", "three") == [200, 401, 200, 200]


async def test_a_running_answer_of_a_removed_key_ends_as_it_would(
    mesh: FakeMesh, http: aiohttp.ClientSession, file: Path
) -> None:
    gate = asyncio.Event()

    async def script(target: FakeTarget, message: object, out: object) -> None:
        await gate.wait()
        await says("hello")(target, message, out)  # type: ignore[arg-type]

    target = await mesh.start_target(script)
    await mesh.start_door(api_keys_file=str(file))
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 5}

    async def ask() -> str:
        async with http.post(
            mesh.url + "/v1/completions", json=body, headers={"Authorization": "Bearer one"}
        ) as response:
            return str((await response.json())["choices"][0]["text"])

    running = asyncio.create_task(ask())
    await target.began.wait()
    replace(file, "two\n")
    assert await statuses(mesh, http, "one") == [401]
    gate.set()
    assert await running == "hello"


async def test_a_key_that_is_removed_while_its_request_arrives_makes_it_nobody_elses(
    mesh: FakeMesh, file: Path
) -> None:
    """Else it would run as a caller without a key, whose namespace is another."""
    target = await mesh.start_target(says("hello"))
    door = await mesh.start_door(api_keys_file=str(file))
    connections = door.connections
    for keys in ("one\ntwo\n", "two\n"):
        reader, writer = await connect(mesh)
        writer.write(head(len(BODY), "Authorization: Bearer one") + BODY[:5])
        await until(lambda: any(each.body_bytes for each in connections.open))
        replace(file, keys)
        writer.write(BODY[5:])
        assert (await asyncio.wait_for(answer(reader), 5))[0] == 200
        writer.close()
        await until(lambda: not connections.open)
    first, second = target.asked
    assert first.caller == second.caller != ""


async def test_figures_of_several_callers_are_hidden_once_there_are_several(
    mesh: FakeMesh, http: aiohttp.ClientSession, file: Path
) -> None:
    replace(file, "one\n")
    await mesh.start_door(api_keys_file=str(file))
    header = {"Authorization": "Bearer one"}
    async with http.get(mesh.url + "/metrics", headers=header) as response:
        assert response.status == 200
    replace(file, "one\ntwo\n")
    async with http.get(mesh.url + "/metrics", headers=header) as response:
        assert response.status == 403


def test_a_file_without_keys_changes_nothing_and_is_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = ApiKeys(files=[str(file)])
    for text in ("", "\n"):
        replace(file, text)
        assert keys.know(b"one")
    file.unlink()
    assert keys.know(b"one")
    assert not keys.know(b"")
    told = [each.getMessage() for each in caplog.records]
    stay = "the API keys stay as they were"
    assert told == [f"{stay}: {file} has no key"] * 2 + [f"{stay}: {file} cannot be read (No such file or directory)"]
    replace(file, "three\n")
    assert keys.know(b"three")
    assert not keys.know(b"one")


def test_a_file_without_keys_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        ApiKeys(files=[str(tmp_path / "none")])


async def post(
    mesh: FakeMesh, http: aiohttp.ClientSession, key: str, path: str, **body: object
) -> tuple[int, str, str]:
    header = {"Authorization": f"Bearer {key}"}
    async with http.post(mesh.url + path, json={"model": MODEL, **body}, headers=header) as response:
        text = await response.text()
    return response.status, response.headers.get("Retry-After", ""), text


async def test_a_key_over_its_limit_is_told_which_and_usage_is_told_by_name(
    mesh: FakeMesh, http: aiohttp.ClientSession, file: Path
) -> None:
    replace(file, "one name=alice\ntwo name=bob, three\n")
    await mesh.start_target(says("hello"))
    await mesh.start_door(api_keys_file=str(file), key_requests_per_minute=2)
    asked = {"prompt": "hi", "max_tokens": 5}
    status, _, text = await post(mesh, http, "one", "/v1/completions", **asked)
    assert status == 200
    usage = json.loads(text)["usage"]
    assert (await post(mesh, http, "one", "/v1/completions", stream=True, **asked))[0] == 200
    said = [{"role": "user", "content": "x"}]
    status, wait, text = await post(mesh, http, "one", "/v1/chat/completions", messages=said)
    assert (status, "key_requests_per_minute" in text, "rate_limit_exceeded" in text) == (429, True, True)
    assert 1 <= int(wait) <= 30
    assert (await post(mesh, http, "one", "/tokenize", prompt="hi"))[0] == 200  # runs no model
    for key in ("two", "three"):
        assert (await post(mesh, http, key, "/v1/completions", **asked))[0] == 200
    counted = {
        name: mesh.registry.get_sample_value("specmesh:key_requests_total", {"key": name})
        for name in ("alice", "bob", "unnamed")
    }
    assert counted == {"alice": 2, "bob": 1, "unnamed": 1}
    for ours, theirs in (("prompt", "prompt"), ("generation", "completion")):
        tokens = mesh.registry.get_sample_value(f"specmesh:key_{ours}_tokens_total", {"key": "alice"})
        assert tokens == 2 * usage[f"{theirs}_tokens"] > 0
    refused = {"key": "alice", "limit": "requests"}
    assert mesh.registry.get_sample_value("specmesh:key_requests_refused_total", refused) == 1
    exposed = generate_latest(mesh.registry).decode()
    assert 'key="one"' not in exposed and 'key="three"' not in exposed


async def test_tokens_that_a_request_has_used_keep_the_next_ones_out(
    mesh: FakeMesh, http: aiohttp.ClientSession, file: Path
) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(api_keys_file=str(file), key_tokens_per_minute=3)
    asked = {"prompt": "hi", "max_tokens": 5}
    assert (await post(mesh, http, "one", "/v1/completions", **asked))[0] == 200
    status, _, text = await post(mesh, http, "one", "/v1/completions", **asked)
    assert (status, "key_tokens_per_minute" in text) == (429, True)
    assert (await post(mesh, http, "two", "/v1/completions", **asked))[0] == 200


def test_what_follows_a_key_is_a_name_or_the_file_is_refused_without_telling_it(file: Path) -> None:
    for text in ("one alice", "one name=", "one name=a b", "one name=sch\u00f6n", "one name=a name=b"):
        replace(file, text)
        with pytest.raises(ValueError, match="behind a key") as caught:
            ApiKeys(files=[str(file)])
        assert "one" not in str(caught.value).replace(str(file), "").replace("nothing", "")


ROUTES_BESIDE = {
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
}


async def test_what_a_key_asks_beside_completions_is_its_own_load(
    mesh: FakeMesh, http: aiohttp.ClientSession, file: Path
) -> None:
    """While the tokenizer is slow, one key fills the server no further than its share."""
    gate = asyncio.Event()

    class Slow(FakeTokenizer):
        async def encode(self, message: Any, call: Any) -> Any:
            await gate.wait()
            return await super().encode(message, call)

        async def decode(self, message: Any, call: Any) -> Any:
            await gate.wait()
            return await super().decode(message, call)

    await mesh.stop("tokenizer-1")
    await mesh.start("tokenizer", "tokenizer-2", Slow())
    await mesh.start_target(says("hello"))
    door = await mesh.start_door(api_keys_file=str(file), max_waiting=8)

    async def ask(key: str, path: str) -> int:
        header = {"Authorization": f"Bearer {key}"}
        async with http.post(mesh.url + path, json={"model": MODEL, **ROUTES_BESIDE[path]}, headers=header) as response:
            return response.status

    paths = [*ROUTES_BESIDE] * 3
    ones = [asyncio.create_task(ask("one", path)) for path in paths[:8]]
    await until(lambda: door.load() + sum(each.done() for each in ones) == 8)
    refused = [each.result() for each in ones if each.done()]
    assert refused == [429, 429]
    two = asyncio.create_task(ask("two", "/tokenize"))
    await until(lambda: door.load() == 7)
    gate.set()
    assert await two == 200
    assert sorted(await asyncio.gather(*ones)) == [200] * 6 + [429] * 2
