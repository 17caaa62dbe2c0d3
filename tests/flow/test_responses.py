"""/v1/responses through the whole mesh with the default model: the page's example, a schema, and a loop of tools, with
drafts and without."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from running_mesh import RunningMesh
from sse_client import MODEL

pytestmark = pytest.mark.model

OFF = {"speculation": {"off": True}}
WEATHER: Any = {
    "type": "function", "name": "get_weather", "description": "The weather in a city", "strict": True,
    "parameters": {
        "type": "object", "required": ["city", "unit"], "additionalProperties": False,
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    },
}  # fmt: skip
PERSON: Any = {
    "type": "json_schema", "name": "person", "strict": True,
    "schema": {
        "type": "object", "required": ["name", "age"], "additionalProperties": False,
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 120}},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def client(real_mesh: RunningMesh) -> openai.OpenAI:
    return openai.OpenAI(base_url=real_mesh.url + "/v1", api_key="none", max_retries=5)


def brief(response: Any) -> Any:
    """What doesn't differ between two answers to the same request."""
    items = [each.model_dump(exclude={"id", "call_id"}) for each in response.output]
    return response.status, items, response.usage.output_tokens


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"input": "Count: one two three one two three one two"}, marks=pytest.mark.slow),
        {"input": "Count: one two three one two", "temperature": 0.9, "seed": 7},
        pytest.param(
            {"input": "Describe a person.", "text": {"format": PERSON}, "temperature": 0}, marks=pytest.mark.slow
        ),
        {"input": "How is the weather in Paris?", "tools": [WEATHER], "tool_choice": "required", "temperature": 0},
    ],
    ids=["text", "seeded", "schema", "tools"],
)
def test_drafts_and_streams_change_no_response(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    told = []
    for extra in ({"seed": asked.get("seed", 1)} | each for each in (OFF, {}, {"speculation": {"method": "suffix"}})):
        given = {"model": MODEL, "max_output_tokens": 60, **asked, "extra_body": extra}
        given.pop("seed", None)
        told.append(brief(client.responses.create(**given)))
        last = list(client.responses.create(**given, stream=True))[-1]
        assert last.type in ("response.completed", "response.incomplete")
        told.append(brief(last.response))
    assert told == [told[0]] * 6


def test_a_schema_is_held(client: openai.OpenAI) -> None:
    told = client.responses.create(model=MODEL, input="Describe a person.", text={"format": PERSON}, temperature=0)
    person = json.loads(told.output_text)
    assert set(person) == {"name", "age"} and isinstance(person["age"], int)


def test_a_loop_of_tools_goes_on_by_its_id(client: openai.OpenAI) -> None:
    given: Any = {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_output_tokens": 100,
                  "parallel_tool_calls": False}  # fmt: skip
    first = client.responses.create(input="How is the weather in Paris?", tool_choice="required", **given)
    calls = [each for each in first.output if each.type == "function_call"]
    assert calls and all(each.status == "completed" for each in calls)
    assert all(set(json.loads(each.arguments)) == {"city", "unit"} for each in calls)
    results: Any = [
        {"type": "function_call_output", "call_id": each.call_id, "output": '{"sky": "clear", "degrees": 21}'}
        for each in calls
    ]
    by_id = client.responses.create(input=results, previous_response_id=first.id, tool_choice="none", **given)
    question = {"role": "user", "content": "How is the weather in Paris?"}
    by_hand = client.responses.create(
        input=[question, *(each.model_dump() for each in first.output), *results], tool_choice="none", **given
    )
    assert brief(by_id) == brief(by_hand)
    # The conversation is computed once.
    third = client.responses.create(input="Thanks.", previous_response_id=by_id.id, tool_choice="none", **given)
    assert by_id.usage is not None and third.usage is not None
    assert third.usage.input_tokens_details.cached_tokens > by_id.usage.input_tokens // 2


def test_the_example_of_the_page_works(real_mesh: RunningMesh, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/use/responses.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code.replace("http://127.0.0.1:8000", real_mesh.url), {})
    assert len(capsys.readouterr().out.strip().splitlines()) >= 2
