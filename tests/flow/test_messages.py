"""The Messages API through the whole mesh with the default model: calls and schemas that are asked for, with drafts
and without, whole and streamed, and results in the next request."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from running_mesh import RunningMesh
from sse_client import MODEL

pytestmark = [pytest.mark.model, pytest.mark.slow]

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
TIME = {"name": "get_time", "input_schema": {
    "type": "object", "properties": {"zone": {"enum": ["CET", "UTC"]}}, "required": ["zone"],
    "additionalProperties": False}}  # fmt: skip
ASKED = [{"role": "user", "content": "How is the weather in Paris for the next 3 days? Use a tool."}]
OFF = {"off": True}


def post(mesh: RunningMesh, path: str, **fields: Any) -> bytes:
    given = {"model": MODEL, "messages": ASKED, **fields}
    head = {"content-type": "application/json", "x-api-key": "none", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(mesh.url + path, json.dumps(given).encode(), head)
    with urllib.request.urlopen(request, timeout=120) as answer:
        body: bytes = answer.read()
    return body


def message(mesh: RunningMesh, **fields: Any) -> dict[str, Any]:
    given = {"tools": [WEATHER, TIME], "max_tokens": 120, "temperature": 0, **fields}
    told: dict[str, Any] = json.loads(post(mesh, "/v1/messages", **given))
    return told


def said(told: dict[str, Any]) -> tuple[list[Any], str]:
    """Without the ids of the calls, which are new in each answer."""
    content = [{name: value for name, value in block.items() if name != "id"} for block in told["content"]]
    return content, told["stop_reason"]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 7}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("choice", ["any", "auto"])
def test_drafts_change_no_block(real_mesh: RunningMesh, choice: str, sampling: dict[str, Any]) -> None:
    asked = {"tool_choice": {"type": choice, "disable_parallel_tool_use": True}, **sampling}
    told = [said(message(real_mesh, **asked, speculation=wish)) for wish in (OFF, {}, {"method": "suffix"})]
    assert told[0] == told[1] == told[2]
    if choice == "any":
        ((call,), reason) = told[0]
        assert (call["type"], reason) == ("tool_use", "tool_use")
        fields = {"get_weather": {"city", "days"}, "get_time": {"zone"}}
        assert set(call["input"]) == fields[call["name"]]


def test_a_stream_says_what_the_message_says(real_mesh: RunningMesh) -> None:
    asked = {"tools": [WEATHER, TIME], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 120,
             "temperature": 0}  # fmt: skip
    ((call,), reason) = said(message(real_mesh, **asked))
    lines = post(real_mesh, "/v1/messages", stream=True, **asked).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert len(deltas) > 1 and json.loads("".join(each["partial_json"] for each in deltas)) == call["input"]
    assert events[-2]["delta"]["stop_reason"] == reason == "tool_use"


def test_a_result_is_part_of_the_next_request(real_mesh: RunningMesh) -> None:
    first = message(real_mesh, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    (call,) = first["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": '{"sky": "clear", "degrees": 21}'}
    asked = [*ASKED, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    told = message(real_mesh, messages=asked, max_tokens=24)
    assert told["content"]
    usage = told["usage"]
    counted = json.loads(post(real_mesh, "/v1/messages/count_tokens", messages=asked, tools=[WEATHER, TIME]))
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"]
    # What the first request computed of the prompt isn't computed again.
    assert usage["cache_read_input_tokens"] > 0


def test_an_answer_follows_its_schema(real_mesh: RunningMesh) -> None:
    form = {"format": {"type": "json_schema", "schema": TIME["input_schema"]}}
    told = [said(message(real_mesh, tools=None, output_config=form, speculation=wish)) for wish in (OFF, {})]
    assert told[0] == told[1]
    ((block,), reason) = told[0]
    assert reason == "end_turn" and json.loads(block["text"])["zone"] in ("CET", "UTC")


def test_a_schema_that_no_grammar_holds_names_its_field(real_mesh: RunningMesh) -> None:
    wrong = {"name": "f", "input_schema": {"type": "object", "properties": {
        "a": {"type": "string", "pattern": "(?=x)"}}, "required": ["a"]}}  # fmt: skip
    with pytest.raises(urllib.error.HTTPError) as refused:
        message(real_mesh, tools=[wrong], tool_choice={"type": "any"})
    error = json.loads(refused.value.read())["error"]
    assert error["type"] == "invalid_request_error" and error["message"].startswith("tools: ")
