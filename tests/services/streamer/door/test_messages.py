"""The Messages API through the real door: what a model writes comes out as blocks, whole and streamed."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson
import pytest
from fake_mesh import MODEL, FakeMesh, failed, hangs_after, ids_of, says, tokens, until

from mesh.stream import StreamWriter
from services.api.messages import Generate

CALLS = (
    'On it.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn", "days": [1, 2]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
READ = [
    {"type": "text", "text": "On it."},
    {"type": "tool_use", "name": "weather", "input": {"city": "Bonn", "days": [1, 2]}},
    {"type": "tool_use", "name": "time", "input": {}},
]
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("weather", "time")]
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]}
PROMPT = len(ids_of("<user>hi"))
URL = "/v1/messages"


async def whole(http: aiohttp.ClientSession, mesh: FakeMesh, **fields: Any) -> dict[str, Any]:
    async with http.post(mesh.url + URL, json={**BODY, **fields}) as response:
        assert response.status == 200, await response.text()
        told: dict[str, Any] = await response.json()
    return told


def events(stream: bytes) -> list[dict[str, Any]]:
    blocks = stream.split(b"\n\n")
    assert blocks.pop() == b"", "the last event must be closed"
    found = []
    for each in blocks:
        name, data = each.split(b"\n")
        found.append(orjson.loads(data.removeprefix(b"data: ")))
        assert name.decode() == f"event: {found[-1]['type']}"
    return found


async def streamed(http: aiohttp.ClientSession, mesh: FakeMesh, **fields: Any) -> list[dict[str, Any]]:
    async with http.post(mesh.url + URL, json={**BODY, "stream": True, **fields}) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        return events(await response.read())


def joined(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The message, as clients join its events."""
    assert [each["type"] for each in stream[:2]] == ["message_start", "ping"]
    assert [each["type"] for each in stream[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = stream[0]["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    last = open = -1
    for each in stream[2:-2]:
        kind, place = each["type"], each["index"]
        if kind == "content_block_start":
            assert open == -1 and place == last + 1
            message["content"].append({**each["content_block"]})
            open = last = place
            arguments = ""
            continue
        assert place == open
        block = message["content"][place]
        if kind == "content_block_stop":
            open = -1
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = orjson.loads(arguments or "{}")
            continue
        delta = each["delta"]
        if delta["type"] == "input_json_delta":
            arguments += delta["partial_json"]
        else:
            field = {"text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
            block[field] += delta[field]
    assert open == -1
    changes = stream[-2]
    return {**message, **changes["delta"], "usage": {**message["usage"], **changes["usage"]}}


def without_ids(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in block.items() if name != "id"} for block in content]


async def test_an_answer_is_a_message(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello the fox", cached=3))
    await mesh.start_door()
    told = await whole(http, mesh, system="be brief", temperature=0.5)
    assert told.pop("id").startswith("msg_")
    figures = told.pop("metrics")["speculative_decoding"]
    assert figures["num_draft_tokens"] == 3
    prompt = len(ids_of("<system>be brief<user>hi"))
    assert told == {
        "type": "message", "role": "assistant", "model": MODEL,
        "content": [{"type": "text", "text": "hello the fox"}],
        "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3,
            "output_tokens": 4,
        },
    }  # fmt: skip
    (asked,) = target.asked
    assert asked.sampling.temperature == 0.5 and len(asked.token_ids) == prompt


@pytest.mark.parametrize("group", [1, 7, 500])
@pytest.mark.parametrize("text", ["hello the fox", "né 🦊中 \"fin\"\n", ""])
async def test_a_stream_says_what_the_message_says(
    mesh: FakeMesh, http: aiohttp.ClientSession, text: str, group: int
) -> None:
    await mesh.start_target(says(list(text.encode()), group, cached=2))
    await mesh.start_door()
    expected = await whole(http, mesh)
    message = joined(await streamed(http, mesh))
    assert message["content"] == expected["content"] == ([{"type": "text", "text": text}] if text else [])
    for name in ("usage", "stop_reason", "stop_sequence", "model", "role", "type"):
        assert message[name] == expected[name]


async def test_the_first_event_counts_the_prompt_and_the_last_the_answer(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    await mesh.start_target(says("hello the fox", cached=2))
    await mesh.start_door()
    stream = await streamed(http, mesh)
    counted = {"cache_creation_input_tokens": 0}
    begun = {"input_tokens": PROMPT, "cache_read_input_tokens": 0, "output_tokens": 0, **counted}
    assert stream[0]["message"]["usage"] == begun
    ended = {"input_tokens": PROMPT - 2, "cache_read_input_tokens": 2, "output_tokens": 4, **counted}
    assert stream[-2]["usage"] == ended
    assert stream[-2]["metrics"]["speculative_decoding"]["num_spec_steps"] == 3


@pytest.mark.parametrize("group", [1, 7, 500])
async def test_calls_are_blocks_whole_and_streamed(mesh: FakeMesh, http: aiohttp.ClientSession, group: int) -> None:
    await mesh.start_target(says(CALLS, group))
    await mesh.start_door()
    told = await whole(http, mesh, tools=TOOLS)
    message = joined(await streamed(http, mesh, tools=TOOLS))
    for each in (told, message):
        assert (without_ids(each["content"]), each["stop_reason"]) == (READ, "tool_use")
    ids = [block["id"] for each in (told, message) for block in each["content"][1:]]
    assert len({*ids}) == 4


async def test_arguments_leave_while_the_model_writes_them(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door()
    stream = await streamed(http, mesh, tools=TOOLS)
    parts = [each for each in stream if each.get("delta", {}).get("type") == "input_json_delta"]
    assert len([each for each in parts if each["index"] == 1]) > 10


async def test_half_a_marker_at_the_end_is_text(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello <tool_c"))
    await mesh.start_door()
    for each in (await whole(http, mesh, tools=TOOLS), joined(await streamed(http, mesh, tools=TOOLS))):
        assert each["content"] == [{"type": "text", "text": "hello <tool_c"}]


async def test_one_call_at_a_time(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door()
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    for each in (
        await whole(http, mesh, tools=TOOLS, tool_choice=choice),
        joined(await streamed(http, mesh, tools=TOOLS, tool_choice=choice)),
    ):
        assert without_ids(each["content"]) == READ[:2]


async def test_a_call_that_is_asked_for_is_held_by_a_grammar(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says('<tool_call>{"name": "time", "arguments": {}}</tool_call>'))
    await mesh.start_door()
    told = await whole(http, mesh, tools=TOOLS, tool_choice={"type": "tool", "name": "time"})
    assert without_ids(told["content"]) == READ[2:] and told["stop_reason"] == "tool_use"
    (asked,) = target.asked
    assert "time" in asked.sampling.grammar and "weather" not in asked.sampling.grammar


async def test_a_call_that_is_cut_off_has_what_is_whole_of_it(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says(CALLS))
    await mesh.start_door()
    length = len(ids_of(CALLS[: CALLS.index(", 2]")]))
    told = await whole(http, mesh, tools=TOOLS, max_tokens=length)
    assert told["content"][1]["input"] == {"city": "Bonn", "days": [1]}
    assert told["stop_reason"] == "max_tokens" and told["usage"]["output_tokens"] == length


async def test_a_stop_sequence_is_told(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello the fox"))
    await mesh.start_door()
    for each in (
        await whole(http, mesh, stop_sequences=["fox", "the"]),
        joined(await streamed(http, mesh, stop_sequences=["fox", "the"])),
    ):
        assert each["content"] == [{"type": "text", "text": "hello "}]
        assert (each["stop_reason"], each["stop_sequence"]) == ("stop_sequence", "the")


async def test_an_answer_ends_where_the_context_does(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("a" * 300))
    await mesh.start_door()
    for each in (await whole(http, mesh, max_tokens=32000), joined(await streamed(http, mesh, max_tokens=32000))):
        assert each["stop_reason"] == "model_context_window_exceeded"
    assert {each.sampling.max_tokens for each in target.asked} == {target.card.max_context - PROMPT}
    assert (await whole(http, mesh, max_tokens=5))["stop_reason"] == "max_tokens"


async def test_thinking_is_a_block_of_its_own_and_is_counted(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    text = "<think>\nthe fox?\n</think>\n\n" + CALLS
    await mesh.start_target(says(text, 5))
    await mesh.start_door(reasoning_parser="qwen3")
    thought = {"type": "thinking", "thinking": "the fox?", "signature": ""}
    reasoning = len(ids_of(text[: text.index("\n\nOn")]))
    for each in (await whole(http, mesh, tools=TOOLS), joined(await streamed(http, mesh, tools=TOOLS))):
        assert without_ids(each["content"]) == [thought, *READ]
        assert each["usage"]["output_tokens_details"] == {"thinking_tokens": reasoning}
    # A model may think that was told not to.
    quiet = await whole(http, mesh, tools=TOOLS, thinking={"type": "disabled"})
    assert without_ids(quiet["content"]) == READ and quiet["usage"]["output_tokens_details"]["thinking_tokens"] > 0


async def test_an_answer_may_be_held_to_a_schema(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says('{"a": 1}'))
    await mesh.start_door()
    told = await whole(http, mesh, output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}})
    assert told["content"] == [{"type": "text", "text": '{"a": 1}'}]
    assert target.asked[0].sampling.grammar


async def test_tokens_are_counted_as_they_will_be(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    fields = {"system": "be brief", "tools": TOOLS}
    counted = {name: value for name, value in {**BODY, **fields}.items() if name != "max_tokens"}
    prompt = len(ids_of("<system>be brief<user>hi"))
    async with http.post(mesh.url + URL + "/count_tokens", json=counted) as response:
        assert (response.status, await response.json()) == (200, {"input_tokens": prompt})
    assert (await whole(http, mesh, **fields))["usage"]["input_tokens"] == prompt


# Errors ---------------------------------------------------------------------------------------------------


async def refused(
    http: aiohttp.ClientSession, mesh: FakeMesh, path: str = URL, headers: dict[str, str] | None = None, **fields: Any
) -> tuple[int, str, str]:
    """Status, type and message."""
    async with http.post(mesh.url + path, json={**BODY, **fields}, headers=headers) as response:
        told = await response.json()
        assert set(told) == {"type", "error"} and told["type"] == "error"
        assert set(told["error"]) == {"type", "message"}
        return response.status, told["error"]["type"], told["error"]["message"]


async def test_a_wrong_field_is_named(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    status, kind, message = await refused(http, mesh, temperature=9)
    assert (status, kind) == (400, "invalid_request_error") and message.startswith("temperature: ")
    assert (await refused(http, mesh, model="other"))[:2] == (404, "not_found_error")
    assert (await refused(http, mesh, system="x" * 300))[:2] == (400, "invalid_request_error")
    assert (await refused(http, mesh, URL + "/count_tokens"))[:2] == (400, "invalid_request_error")
    assert (await refused(http, mesh, URL + "/batches"))[:2] == (404, "not_found_error")
    async with http.get(mesh.url + URL) as response:
        assert response.status == 405 and (await response.json())["type"] == "error"


async def test_a_body_that_is_too_large_is_said_to_be(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(max_body_bytes=2000)
    assert (await refused(http, mesh, system="x" * 3000))[:2] == (413, "request_too_large")


async def test_keys_come_in_either_header(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door(api_keys="one,two")
    for headers in ({}, {"x-api-key": "three"}, {"x-api-key": ""}, {"Authorization": "Basic one"}):
        assert (await refused(http, mesh, headers=headers))[:2] == (401, "authentication_error")
    taken = ({"x-api-key": "one"}, {"Authorization": "Bearer one"}, {"x-api-key": "two", "Authorization": "Bearer x"})
    for headers in taken:
        async with http.post(mesh.url + URL, json=BODY, headers={**headers, "anthropic-version": "x"}) as response:
            assert response.status == 200
    # A caller is known by the key, whichever header it came in.
    callers = [each.caller for each in target.asked]
    assert callers[0] == callers[1] != callers[2]


async def test_a_server_without_room_says_so(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(hangs_after("hello"))
    door = await mesh.start_door(max_waiting=1)
    async with http.post(mesh.url + URL, json={**BODY, "stream": True}) as first:
        assert first.status == 200
        assert (await refused(http, mesh))[:2] == (429, "rate_limit_error")
        assert target.running == 1
    await until(lambda: target.running == 0)
    await door.drain(0.0)
    status, kind, _ = await refused(http, mesh)
    assert (status, kind) == (529, "overloaded_error")


async def test_a_stream_that_fails_ends_with_an_error(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def breaks(target: Any, message: Generate, out: StreamWriter) -> None:
        await out.send(tokens(message, 0, ids_of("hello")))
        await out.send(failed(message, "engine"))

    await mesh.start_target(breaks)
    await mesh.start_door()
    stream = await streamed(http, mesh)
    assert stream[0]["type"] == "message_start"
    assert stream[-1] == {"type": "error", "error": {"type": "api_error", "message": "it was engine"}}


async def test_a_failure_before_the_first_token_is_a_status(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def breaks(target: Any, message: Generate, out: StreamWriter) -> None:
        await out.send(failed(message, "engine"))

    await mesh.start_target(breaks)
    await mesh.start_door()
    assert (await refused(http, mesh, stream=True))[:2] == (500, "api_error")
