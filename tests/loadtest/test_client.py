from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from scripted_server import DONE, ScriptedServer, answer, chunk, event, usage

from loadtest.client import Client, Origin, ServerUnusable
from loadtest.outcome import FIRST, Outcome

RawServer = Callable[[bytes | None], Awaitable[str]]


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[Client]:
    client = Client(server.url, timeout=20.0)
    yield client
    client.close()


async def ask(client: Client, abandon_after: int | None = None, **fields: Any) -> Outcome:
    body = json.dumps({"max_tokens": 4, **fields}).encode()
    return await client.stream("/v1/chat/completions", body, scheduled=client.now(), abandon_after=abandon_after)


def writes(*pieces: bytes) -> Any:
    async def script(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        for piece in pieces:
            await out.write(piece)

    return script


async def test_a_whole_answer_is_timed_and_counted_from_usage(server: ScriptedServer, client: Client) -> None:
    said = {"speculative_decoding": {"num_draft_tokens": 4, "num_accepted_draft_tokens": 3}}
    server.script = writes(*answer(4, metrics=said))
    outcome = await ask(client)
    assert outcome.ok and outcome.finish == "length"
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (7, 4)
    assert outcome.chunks == 4 and len(outcome.gaps) == 4 and min(outcome.gaps) == FIRST
    assert outcome.speculation == said["speculative_decoding"]
    assert outcome.first is not None and outcome.last is not None
    assert outcome.scheduled <= outcome.started <= outcome.first <= outcome.last <= outcome.ended


async def test_the_first_token_is_the_first_text_not_the_role(server: ScriptedServer, client: Client) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def script(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        await out.write(chunk(""))
        asked.set()
        await gate.wait()
        for piece in answer(1)[1:]:
            await out.write(piece)

    server.script = script
    asking = asyncio.create_task(ask(client))
    await asked.wait()
    opened = client.now()
    gate.set()
    outcome = await asking
    assert outcome.first is not None and outcome.first >= opened


async def test_choices_of_one_request_have_gaps_of_their_own(server: ScriptedServer, client: Client) -> None:
    pieces = [chunk("a", index=0), chunk("b", index=1), chunk("c", index=1), chunk("d", index=0)]
    server.script = writes(*pieces, chunk(finish="stop"), usage(4), DONE)
    outcome = await ask(client)
    assert outcome.ok and outcome.chunks == 4
    assert [gap == FIRST for gap in outcome.gaps] == [True, True, False, False]


async def test_tokens_of_a_chunk_are_what_the_server_says_of_it(server: ScriptedServer, client: Client) -> None:
    def told(text: str, **more: object) -> bytes:
        return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **more}]})

    ways = (
        told("a", token_ids=[1, 2, 3]),
        told("b", runs=[{"source": "ngram", "tokens": 2}, {"source": "", "tokens": 1}]),
        told("c", logprobs={"content": [{"token": "c"}, {"token": "d"}]}),
        told("d"),
    )
    server.script = writes(*ways, chunk(finish="stop"), usage(12), DONE)
    outcome = await ask(client)
    assert list(outcome.told) == [3, 3, 2, 0] and list(outcome.sizes) == [1, 1, 1, 1]


async def test_usage_with_every_chunk_tells_its_tokens_and_usage_at_the_end_does_not(
    server: ScriptedServer, client: Client
) -> None:
    def counted(text: str, tokens: int, **more: object) -> bytes:
        sum_so_far = {"prompt_tokens": 7, "completion_tokens": tokens}
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **more}
        return event({"choices": [choice], "usage": sum_so_far})

    server.script = writes(counted("a", 1), counted("b", 6), counted("", 6, finish_reason="stop"), DONE)
    assert list((await ask(client)).told) == [1, 5]
    server.script = writes(chunk("a"), chunk("b"), counted("c", 6, finish_reason="stop"), DONE)
    assert list((await ask(client)).told) == [0, 0, 0]


async def test_texts_are_kept_where_they_are_wanted(server: ScriptedServer, client: Client) -> None:
    pieces = [chunk("b", index=1), chunk("a", index=0), chunk("c", index=0)]
    server.script = writes(*pieces, chunk(finish="stop"), usage(3), DONE)
    assert (await ask(client)).texts == ()
    kept = await client.stream("/v1/completions", b"{}", scheduled=client.now(), keep_text=True)
    assert kept.texts == ("ac", "b") and kept.text == "ac"


async def test_calls_and_reasoning_are_text_of_an_answer(server: ScriptedServer, client: Client) -> None:
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "Hm."},
        {"content": None, "tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x": 1}'}}]},
    ]

    async def calling(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        for delta in deltas:
            await out.write(event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
        for piece in (chunk(finish="tool_calls"), usage(9), DONE):
            await out.write(piece)

    server.script = calling
    outcome = await client.stream("/v1/chat/completions", b"{}", scheduled=client.now(), keep_text=True)
    assert outcome.ok and outcome.text == 'Hm.f{"x": 1}' and list(outcome.sizes) == [3, 1, 8]


async def test_connections_are_used_again(server: ScriptedServer, client: Client) -> None:
    for _ in range(5):
        assert (await ask(client)).ok
    assert len(server.connections) == 1


async def test_an_error_in_the_stream_is_an_error_of_its_own_kind(server: ScriptedServer, client: Client) -> None:
    failure = event({"error": {"message": "the engine fell over", "type": "engine", "code": "engine"}})
    server.script = writes(chunk("a"), failure, DONE)
    outcome = await ask(client)
    assert outcome.error == "sse_error" and "fell over" in outcome.detail
    assert not outcome.ok


async def test_an_answer_other_than_200_is_named_by_its_status(raw_server: RawServer) -> None:
    body = b'{"error": {"message": "too many", "code": "overloaded"}}'
    head = b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n"
    url = await raw_server(head % len(body) + body)
    client = Client(url)
    outcome = await ask(client)
    assert outcome.error == "http_429" and outcome.detail == "overloaded: too many"
    assert outcome.retry_after == "7" and outcome.local_port
    client.close()


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([chunk("a"), b"data: {broken\n\n"], "bad_json"),
        ([chunk("a"), b"data: 17\n\n"], "bad_json"),
        ([b'data: {"choices": [17]}\n\n'], "bad_json"),
        ([b'data: {"choices": [], "usage": {"x": 1}}\n\n'], "bad_json"),
        ([b"<html>\n\n"], "bad_http"),
        ([chunk("a"), chunk(finish="stop")], "truncated"),
        ([chunk("a"), usage(1)], "truncated"),
        ([chunk("a"), DONE], "unfinished"),
    ],
)
async def test_a_stream_that_is_not_whole_or_not_understood_is_an_error(
    server: ScriptedServer, client: Client, pieces: list[bytes], kind: str
) -> None:
    server.script = writes(*pieces)
    outcome = await ask(client)
    assert outcome.error == kind


async def test_a_stream_that_ends_with_usage_and_without_done_is_whole(server: ScriptedServer, client: Client) -> None:
    server.script = writes(chunk("a"), chunk("b"), chunk(finish="stop"), usage(3))
    outcome = await ask(client)
    assert outcome.ok and outcome.completion_tokens == 3


async def test_a_broken_stream_does_not_spoil_the_next_request(server: ScriptedServer, client: Client) -> None:
    server.script = writes(b"data: {broken\n\n", *answer(2))
    assert (await ask(client)).error == "bad_json"
    server.script = server.whole_answer
    assert (await ask(client)).ok


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (None, "reset"),
        (b"", "closed"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:", "truncated"),
    ],
)
async def test_a_connection_that_breaks_is_an_error_by_how_it_broke(
    raw_server: RawServer, reply: bytes | None, kind: str
) -> None:
    client = Client(await raw_server(reply))
    outcome = await ask(client)
    # Closing with unread bytes may reach us as a reset.
    assert outcome.error == kind or (kind == "reset" and outcome.error == "closed")


async def test_nobody_listening_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = Client(f"http://127.0.0.1:{taken.getsockname()[1]}")
        outcome = await ask(client)
    assert outcome.error == "refused" and outcome.ended >= outcome.scheduled


async def test_silence_ends_with_a_timeout(server: ScriptedServer) -> None:
    async def silent(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        await asyncio.Event().wait()

    server.script = silent
    client = Client(server.url, timeout=0.05)
    outcome = await ask(client)
    assert outcome.error == "timeout"
    await asyncio.wait_for(server.left.wait(), 10)
    client.close()


async def test_a_request_is_abandoned_after_the_chunks_asked_for(server: ScriptedServer, client: Client) -> None:
    async def endless(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        while True:
            await out.write(chunk("a"))
            await asyncio.sleep(0)

    server.script = endless
    outcome = await ask(client, abandon_after=3)
    assert outcome.abandoned and not outcome.error and not outcome.ok
    assert outcome.chunks >= 3
    await asyncio.wait_for(server.left.wait(), 10)


async def test_a_request_can_be_abandoned_before_its_first_chunk(server: ScriptedServer, client: Client) -> None:
    async def silent(request: web.Request, body: dict[str, Any], out: web.StreamResponse) -> None:
        await asyncio.Event().wait()

    server.script = silent
    outcome = await ask(client, abandon_after=0)
    assert outcome.abandoned and outcome.chunks == 0
    await asyncio.wait_for(server.left.wait(), 10)


async def test_an_idle_connection_the_server_closed_is_replaced(server: ScriptedServer, client: Client) -> None:
    assert (await ask(client)).ok
    for transport in server.connections:
        transport.abort()
    assert (await ask(client)).ok


async def test_the_key_is_sent_as_bearer(server: ScriptedServer) -> None:
    client = Client(server.url, api_key="sk-1")
    await ask(client)
    assert server.headers[0]["Authorization"] == "Bearer sk-1"
    client.close()


async def test_a_plain_get_returns_the_body_or_says_why_not(server: ScriptedServer, client: Client) -> None:
    assert json.loads(await client.get("/v1/models"))["data"][0]["id"] == "scripted"
    with pytest.raises(ServerUnusable, match="404"):
        await client.get("/nothing")


def test_addresses_with_and_without_scheme_path_and_port() -> None:
    assert Origin.of("localhost:8000") == Origin("localhost", 8000, False, "")
    assert Origin.of("https://api.example.com/v1") == Origin("api.example.com", 443, True, "")
    assert Origin.of("http://[::1]:81/proxy/v1/") == Origin("::1", 81, False, "/proxy")
    with pytest.raises(ValueError, match="address"):
        Origin.of("ftp://x")


async def test_a_key_that_would_break_the_header_is_refused() -> None:
    with pytest.raises(ValueError, match="key"):
        Client("http://localhost", api_key="a\r\nX: y")


async def test_a_slow_reader_takes_a_little_at_a_time_and_all_in_the_end(server: ScriptedServer) -> None:
    words = 4000
    quick, slow = Client(server.url, timeout=20.0), Client(server.url, timeout=20.0, read_pause=0.001)
    reads = []
    for client in (quick, slow):
        outcome = await ask(client, max_tokens=words)
        assert outcome.ok and outcome.chunks == words
        # What is read at once has one time.
        reads.append(sum(gap > 0 for gap in outcome.gaps))
        client.close()
    assert outcome.ended - outcome.started > 0.001 * reads[1]
    assert reads[1] > 50
