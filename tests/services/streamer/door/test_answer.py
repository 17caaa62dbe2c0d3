"""Large answers: the same as small ones, but written in slices, so that none keeps the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from fake_mesh import CARD, MODEL, FakeMesh, FakeTarget, finished, says, tokens, until
from sse_reading import streamed

from mesh.stream import StreamWriter
from services.api.messages import Generate
from services.streamer.choice.detokenize import Vocabulary
from services.streamer.choice.turns import A_SLICE, A_TURN

COUNT = 500  # tokens of a choice
LONG = [40 + place % 80 for place in range(COUNT)]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    logprobs = {"logprobs": True, "top_logprobs": 20} if path == CHAT else {"logprobs": 20}
    asked = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {"model": MODEL, "max_tokens": COUNT, **asked, **logprobs, **fields}


async def at_once(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
    """All tokens in one message, as after a reader that was slow."""
    await out.send(tokens(message, 0, LONG[: message.sampling.max_tokens]))
    await out.send(finished(message, message.sampling.max_tokens, "length"))


async def started(mesh: FakeMesh, script: Any) -> FakeTarget:
    target = await mesh.start_target(script)
    target.card = msgspec.structs.replace(CARD, max_context=4096)
    await mesh.start_door()
    return target


class Named:
    """How many tokens were written by name, and the most between two turns of the event loop."""

    def __init__(self) -> None:
        self.total = self.most = self._before = 0

    def turn(self) -> None:
        self.most = max(self.most, self.total - self._before)
        self._before = self.total
        self.handle = asyncio.get_running_loop().call_soon(self.turn)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Named]:
    named = Named()
    bytes_of = Vocabulary.bytes_of

    def counting(vocabulary: Vocabulary, token: int) -> bytes:
        named.total += 1
        return bytes_of(vocabulary, token)

    monkeypatch.setattr(Vocabulary, "bytes_of", counting)
    named.turn()
    yield named
    named.handle.cancel()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_no_turn_of_the_loop_writes_more_than_its_share_of_a_large_body(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    await started(mesh, at_once)
    with counted(monkeypatch) as named:
        async with http.post(mesh.url + path, json=body_for(path, n=8)) as response:
            assert response.status == 200
            await response.read()
    assert named.total == 8 * COUNT * 21
    assert named.most <= A_TURN + A_SLICE


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_no_turn_of_the_loop_writes_more_than_its_share_of_streams(
    mesh: FakeMesh, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    await started(mesh, at_once)
    with counted(monkeypatch) as named:
        bodies = [streamed(http, mesh.url + path, body_for(path, n=4, stream=True)) for _ in range(4)]
        await asyncio.gather(*bodies)
    assert named.total == 16 * COUNT * 21
    assert named.most <= A_TURN + A_SLICE


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_body_in_slices_says_what_a_stream_says(
    mesh: FakeMesh, http: aiohttp.ClientSession, path: str
) -> None:
    await started(mesh, says(LONG, group=3))
    asked = {"return_token_ids": True, "return_drafts": True}
    async with http.post(mesh.url + path, json=body_for(path, **asked)) as response:
        assert response.status == 200, await response.text()
        assert (response.content_type, response.headers.get("Content-Length")) == ("application/json", None)
        (whole,) = (await response.json())["choices"]
    chunks = await streamed(http, mesh.url + path, body_for(path, stream=True, **asked))
    parts = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
    text = "".join(part.get("delta", part).get("content" if path == CHAT else "text", "") for part in parts)
    assert (whole["message"]["content"] if path == CHAT else whole["text"]) == text
    for name in ("token_ids", "runs"):
        assert whole[name] == [each for part in parts for each in part.get(name, [])]
    said = [part["logprobs"] for part in parts if part["logprobs"]]
    for name, values in whole["logprobs"].items():
        if values is not None:
            assert values == [each for part in said for each in part[name]]
            assert len(values) == COUNT
    assert whole["finish_reason"] == parts[-1]["finish_reason"] == "stop"


async def test_what_waited_for_a_slow_reader_comes_in_chunks_with_their_own_text(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await started(mesh, at_once)
    chunks = await streamed(http, mesh.url + COMPLETIONS, body_for(COMPLETIONS, stream=True))
    parts = [choice for chunk in chunks[:-1] for choice in chunk["choices"] if choice["logprobs"]]
    assert len(parts) > COUNT * 21 // (2 * A_SLICE)
    for part in parts:
        assert "".join(part["logprobs"]["tokens"]) == part["text"]
    offsets = [offset for part in parts for offset in part["logprobs"]["text_offset"]]
    assert offsets == list(range(COUNT))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_choice_without_tokens_has_empty_lists(mesh: FakeMesh, http: aiohttp.ClientSession, path: str) -> None:
    async def nothing(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(finished(message, 0))

    await started(mesh, nothing)
    async with http.post(mesh.url + path, json=body_for(path)) as response:
        (choice,) = (await response.json())["choices"]
    if path == CHAT:
        assert choice["logprobs"] == {"content": [], "refusal": None}
    else:
        assert choice["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


async def test_a_client_that_leaves_a_large_body_costs_nothing_more(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await started(mesh, at_once)
    response = await http.post(mesh.url + CHAT, json=body_for(CHAT, n=8))
    await response.content.readany()
    response.close()
    assert mesh.door is not None
    door = mesh.door
    await until(lambda: door.load() == 0)
    async with http.post(mesh.url + CHAT, json=body_for(CHAT, max_tokens=3)) as small:
        assert (await small.json())["usage"]["completion_tokens"] == 3
