"""A budget of thinking through the whole mesh with the default model, whose answers begin inside their reasoning here:
the reasoning is closed at the budget, what was asked for follows, and neither drafts, batches nor the death of a worker
change a character."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from running_mesh import RunningMesh, mesh_fixture
from sse_client import MODEL, all_told, events

pytestmark = pytest.mark.model

thinking_mesh = mesh_fixture("module", dtype="int8", reasoning_parser="deepseek_r1")
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "set_age", "parameters": SCHEMA}}
ASKED: list[dict[str, Any]] = [
    {},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    {"structured_outputs": {"choice": ["yes", "no"]}, "n": 2},
]
SAMPLINGS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.9, "top_p": 0.95}]
BUDGETS = [6, 0, 17, 1]
# Of the marker, which this model spells in several tokens.
MOST_OF_MARKER = 5


def bodies() -> list[dict[str, Any]]:
    return [
        {
            "model": MODEL, "seed": 7 + place, "max_tokens": 60, "stream": True,
            "stream_options": {"include_usage": True}, "thinking_token_budget": BUDGETS[place % len(BUDGETS)],
            "messages": [{"role": "user", "content": f"How old is person {place}?"}],
            **ASKED[place // 2 % len(ASKED)], **SAMPLINGS[place % len(SAMPLINGS)],
        }
        for place in range(8)
    ]  # fmt: skip


class Told:
    def __init__(self, count: int) -> None:
        self.reasoning = [""] * count
        self.contents = [""] * count
        self.arguments = [""] * count
        self.ends: list[str | None] = [None] * count
        self.reasoning_tokens = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Told) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return repr(vars(self))


async def tell(session: aiohttp.ClientSession, url: str, body: dict[str, Any], on_text: Any = None) -> Told:
    told = Told(body.get("n", 1))
    async with session.post(url + "/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for event in events(response):
            assert event is None or "error" not in event, event
            for each in (event or {}).get("choices", []):
                place, delta = each["index"], each["delta"]
                told.reasoning[place] += delta.get("reasoning") or ""
                told.contents[place] += delta.get("content") or ""
                for call in delta.get("tool_calls", ()):
                    told.arguments[place] += call["function"]["arguments"]
                told.ends[place] = each["finish_reason"] or told.ends[place]
            if usage := (event or {}).get("usage"):
                told.reasoning_tokens = usage["completion_tokens_details"]["reasoning_tokens"]
            if on_text is not None and any(told.reasoning):
                on_text()
                on_text = None
    return told


def tell_all(mesh: RunningMesh, asked: list[dict[str, Any]], at_a_time: int, **speculation: Any) -> list[Told]:
    return all_told(tell, mesh.url, [{**body, "speculation": speculation} for body in asked], at_a_time)


def check(body: dict[str, Any], told: Told) -> None:
    """What was asked for follows the reasoning, which is within its budget."""
    count = body.get("n", 1)
    assert told.reasoning_tokens <= count * (body["thinking_token_budget"] + MOST_OF_MARKER)
    for content, arguments, end in zip(told.contents, told.arguments, told.ends, strict=True):
        if "tools" in body:
            # JSON may have spaces without end.
            assert end == "length" or (end == "tool_calls" and not content and set(json.loads(arguments)) == {"age"})
        elif "response_format" in body:
            assert end == "length" or (end == "stop" and set(json.loads(content)) == {"age"})
        elif "structured_outputs" in body:
            assert end == "stop" and content in ("yes", "no")
        else:
            assert content and "think>" not in content


@pytest.mark.parametrize(
    "methods", [[{}], pytest.param([{"method": "suffix"}, {"method": "ngram"}], marks=pytest.mark.slow)]
)
def test_a_budget_holds_with_every_form_and_drafts_change_no_character(
    thinking_mesh: RunningMesh, methods: list[dict[str, Any]]
) -> None:
    asked = bodies()
    off = tell_all(thinking_mesh, asked, 2, off=True)
    for body, told in zip(asked, off, strict=True):
        check(body, told)
    ends = [end for told in off for end in told.ends]
    assert ends.count("length") < len(ends) // 2, ends
    for method in methods:
        assert tell_all(thinking_mesh, asked, 8, **method) == off


@pytest.mark.slow
def test_a_worker_that_dies_while_it_thinks_changes_no_character(thinking_mesh: RunningMesh) -> None:
    body = {**bodies()[1], "thinking_token_budget": 30}
    [calm] = tell_all(thinking_mesh, [body], 1)

    async def killed() -> Told:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
            return await tell(session, thinking_mesh.url, body, lambda: thinking_mesh.kill("worker"))

    assert asyncio.run(killed()) == calm
