"""/v1/responses through the real door: streams end with what would have been the body, errors, keys, and settings."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest
from fake_mesh import MODEL, FakeMesh, FakeTarget, failed, ids_of, says, tokens

from mesh.stream import StreamWriter
from services.api.messages import Generate

TEXT = '<think>hm, the fox</think>On it.\n<tool_call>{"name": "time", "arguments": {"zone": "CET"}}</tool_call>'
TOOL = {"type": "function", "name": "time", "parameters": {"type": "object"}}
BODY: dict[str, Any] = {"model": MODEL, "input": "hi"}
URL = "/v1/responses"


async def post(http: aiohttp.ClientSession, mesh: FakeMesh, key: str = "", **fields: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with http.post(mesh.url + URL, json={**BODY, **fields}, headers=headers) as response:
        return response.status, await response.json()


async def answer(http: aiohttp.ClientSession, mesh: FakeMesh, key: str = "", **fields: Any) -> Any:
    status, told = await post(http, mesh, key, **fields)
    assert status == 200, told
    return told


async def events(http: aiohttp.ClientSession, mesh: FakeMesh, **fields: Any) -> list[dict[str, Any]]:
    """Of a whole stream, which has nothing else in it."""
    async with http.post(mesh.url + URL, json={**BODY, "stream": True, **fields}) as response:
        assert response.status == 200 and response.content_type == "text/event-stream", await response.text()
        return read(await response.read())


def read(body: bytes) -> list[dict[str, Any]]:
    *blocks, end = body.split(b"\n\n")
    assert end == b""
    found = []
    for number, block in enumerate(each for each in blocks if not each.startswith(b":")):
        name, data = block.strip(b"\n").split(b"\n")
        event = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode() and event["sequence_number"] == number
        found.append(event)
    return found


def lasting(response: dict[str, Any]) -> dict[str, Any]:
    """What doesn't differ between two answers to the same request."""
    ids = ("id", "call_id")
    output = [{name: each for name, each in item.items() if name not in ids} for item in response["output"]]
    passing = ("id", "created_at", "completed_at", "metrics", "output")
    return {name: each for name, each in response.items() if name not in passing} | {"output": output}


@pytest.mark.parametrize("group", [1, 5, 500])
async def test_a_stream_ends_with_what_would_be_the_body(
    mesh: FakeMesh, http: aiohttp.ClientSession, group: int
) -> None:
    await mesh.start_target(says(TEXT, group))
    await mesh.start_door(reasoning_parser="qwen3")
    fields = {"tools": [TOOL], "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}}
    whole = await answer(http, mesh, **fields)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["output"][2]["arguments"] == '{"zone": "CET"}' and whole["status"] == "completed"
    reasoning = TEXT[: TEXT.index("On")]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": len(ids_of(reasoning))}
    assert whole["metrics"]["speculative_decoding"]
    told = await events(http, mesh, **fields)
    assert [each["type"] for each in (told[0], told[1], told[-1])] == [
        "response.created", "response.in_progress", "response.completed",
    ]  # fmt: skip
    assert lasting(told[-1]["response"]) == lasting(whole)
    # The tokens of the reasoning are told with the first text behind it, those of a call at the end not at all.
    logprobs = [each for event in told for each in event.get("logprobs", []) if event["type"].endswith("delta")]
    assert "".join(each["token"] for each in logprobs) == f"{reasoning}On it."
    assert whole["output"][1]["content"][0]["logprobs"] == logprobs


async def test_a_message_has_the_same_logprobs_however_many_tokens_came_at_once(
    mesh: FakeMesh, http: aiohttp.ClientSession
) -> None:
    text = f"{TEXT}\nDone <tool_"
    await mesh.start_door(reasoning_parser="qwen3")
    found = []
    for group in (1, 500):
        await mesh.start_target(says(text, group))
        whole = await answer(http, mesh, tools=[TOOL], include=["message.output_text.logprobs"])
        await mesh.stop("worker-1")
        found.append(lasting(whole))
    assert found[0] == found[1]
    first, last = (item["content"][0] for item in found[0]["output"] if item["type"] == "message")
    # What might have become a call is text after all.
    assert (first["text"], last["text"]) == ("On it.", "\nDone <tool_")
    tokens_of = ["".join(each["token"] for each in part["logprobs"]) for part in (first, last)]
    assert "".join(tokens_of) == text and tokens_of[0] == TEXT[: TEXT.index("\n")]


async def test_an_answer_that_is_cut_off_is_incomplete(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello the fox"))
    await mesh.start_door()
    whole = await answer(http, mesh, max_output_tokens=2)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["output"][0]["status"] == "incomplete" and whole["completed_at"] is None
    told = await events(http, mesh, max_output_tokens=2)
    assert told[-1]["type"] == "response.incomplete" and lasting(told[-1]["response"]) == lasting(whole)


async def test_an_input_that_does_not_fit_is_named(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    for fields, param in (({"input": "a" * 300}, "input"), ({"max_output_tokens": 300}, "max_output_tokens")):
        status, told = await post(http, mesh, **fields)
        assert (status, told["error"]["param"]) == (400, param)
        assert told["error"]["code"] == "context_length_exceeded"


async def test_a_schema_that_cannot_be_held_is_named(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    format = {"type": "json_schema", "name": "n", "schema": {"const": "impossible"}}
    status, told = await post(http, mesh, text={"format": format}, stream=True)
    assert (status, told["error"]["param"]) == (400, "text.format.schema")


async def fails_after_two(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
    for seq, token in enumerate(ids_of("hello the")):
        await out.send(tokens(message, seq, [token]))
    await out.send(failed(message, "engine"))


async def fails_at_once(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
    await out.send(failed(message, "overloaded"))


async def test_an_error_under_way_is_told_in_the_stream(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(fails_after_two)
    door = await mesh.start_door()
    told = await events(http, mesh)
    error, last = told[-2:]
    assert (error["type"], error["code"], error["message"]) == ("error", "engine", "it was engine")
    assert last["type"] == "response.failed" and last["response"]["error"]["code"] == "server_error"
    assert last["response"]["output"][0]["content"][0]["text"] == "hello the"
    async with http.get(f"{mesh.url}{URL}/{last['response']['id']}") as response:
        assert response.status == 404
    assert door.load() == 0


async def test_an_error_before_the_first_token_is_a_status(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(fails_at_once)
    await mesh.start_door()
    for stream in (False, True):
        status, told = await post(http, mesh, stream=stream)
        assert (status, told["error"]["code"]) == (429, "overloaded")


async def test_a_key_knows_only_its_own_responses(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(api_keys="one,two")
    told = await answer(http, mesh, "one")
    path = f"{mesh.url}{URL}/{told['id']}"
    async with http.get(path, headers={"Authorization": "Bearer two"}) as response:
        assert response.status == 404
    async with http.delete(path, headers={"Authorization": "Bearer two"}) as response:
        assert response.status == 404
    status, refused = await post(http, mesh, "two", previous_response_id=told["id"])
    assert (status, refused["error"]["code"]) == (400, "previous_response_not_found")
    async with http.get(path) as response:
        assert response.status == 401
    async with http.get(path, headers={"Authorization": "Bearer one"}) as response:
        assert await response.json() == told


@pytest.mark.parametrize(("setting", "fields"), [(256, {"store": False}), (0, {})])
async def test_what_is_not_to_be_kept_is_not(
    mesh: FakeMesh, http: aiohttp.ClientSession, setting: int, fields: dict[str, Any]
) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(kept_responses=setting)
    told = await answer(http, mesh, **fields)
    assert told["store"] is False
    async with http.get(f"{mesh.url}{URL}/{told['id']}") as response:
        assert response.status == 404


async def test_settings_bound_what_is_kept(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(kept_responses=1, kept_responses_mb=1, kept_responses_seconds=1000.0)
    first, second = await answer(http, mesh), await answer(http, mesh)
    found = []
    for each in (first, second):
        async with http.get(f"{mesh.url}{URL}/{each['id']}") as response:
            found.append(response.status)
    assert found == [404, 200]
    async with http.get(f"{mesh.url}{URL}/{second['id']}?stream=true") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, "unsupported_parameter")
    async with http.get(f"{mesh.url}{URL}/{second['id']}/input_items") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")


async def test_a_conversation_goes_on(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    target = await mesh.start_target(says("hello"))
    await mesh.start_door()
    first = await answer(http, mesh, instructions="Be short.")
    second = (await events(http, mesh, previous_response_id=first["id"], input="and?"))[-1]["response"]
    await answer(http, mesh, previous_response_id=second["id"], input="so?", instructions="Be long.")
    prompts = [each.token_ids for each in target.asked]
    talk = "<user>hi<assistant>hello<user>and?"
    assert prompts == [ids_of(each) for each in (
        "<system>Be short.<user>hi", talk, f"<system>Be long.{talk}<assistant>hello<user>so?")]  # fmt: skip


async def test_a_client_that_leaves_ends_its_request(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    async def hangs(target: FakeTarget, message: Generate, out: StreamWriter) -> None:
        await out.send(tokens(message, 0, ids_of("hello")))
        await asyncio.Event().wait()

    target = await mesh.start_target(hangs)
    await mesh.start_door()
    async with http.post(mesh.url + URL, json={**BODY, "stream": True}) as response:
        await response.content.readuntil(b"output_text.delta")
    await asyncio.wait_for(target.was_cancelled.wait(), 5)


async def test_frames_of_equal_size_carry_the_same_events(mesh: FakeMesh, http: aiohttp.ClientSession) -> None:
    await mesh.start_target(says("hello the fox"))
    await mesh.start_door(pace_ms=5.0)
    told = await events(http, mesh)
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == "hello the fox"
