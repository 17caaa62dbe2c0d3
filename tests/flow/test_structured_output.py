"""Structured output as a client sees it: every answer has its form, and neither drafts, batches nor the death of a
worker change a character of it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
from running_mesh import RunningMesh
from sse_client import MODEL, all_told, events

pytestmark = pytest.mark.model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "occupation_of_this_person": {"enum": ["baker", "teacher", "sailor"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "occupation_of_this_person", "age"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
    {"structured_outputs": {"regex": "[a-z]{3,8}( [a-z]{2,6}){2,5}"}},
    {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
    {"guided_grammar": 'start: "The answer is " ("yes" | "no") " and nothing else."'},
    {"structured_outputs": {"grammar": 'root ::= "(" (root | [0-9]{1,3}) ")" # nested'}},
    {"response_format": {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "tag", "begin": "<name>", "content": {"type": "any_text"}, "end": [" ", ".", "<"]},
        {"type": "json_schema", "json_schema": {"enum": [1, 22, 333]}}]}}},
    {},
]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0, "repetition_penalty": 1.15}, {"temperature": 0.9, "top_p": 0.95, "presence_penalty": 0.6},
    {"temperature": 1.0, "n": 2}, {"temperature": 0, "min_tokens": 4},
]  # fmt: skip


def has_form(form: dict[str, Any], text: str) -> bool:
    if form.get("response_format", {}).get("type") == "structural_tag":
        return re.fullmatch(r"<name>[^ .<]*[ .<](1|22|333)", text) is not None
    if "response_format" in form:
        jsonschema.validate(json.loads(text), PERSON)
        return True
    outputs = form.get("structured_outputs", {})
    if "regex" in outputs:
        return re.fullmatch(outputs["regex"], text) is not None
    if "choice" in outputs:
        return text in outputs["choice"]
    if "grammar" in outputs:
        inner = text.strip("()")
        return text == "(" * (len(text) - len(inner) >> 1) + inner + ")" * (len(text) - len(inner) >> 1)
    return "guided_grammar" not in form or re.fullmatch("The answer is (yes|no) and nothing else[.]", text) is not None


def bodies() -> list[dict[str, Any]]:
    return [
        {
            "model": MODEL, "seed": 7 + place, "max_tokens": 60, "stream": True, "return_provenance": True,
            "messages": [{"role": "user", "content": f"Tell me of person {place}."}],
            **FORMS[place % len(FORMS)], **SAMPLINGS[place % len(SAMPLINGS)],
        }
        for place in range(12)
    ]  # fmt: skip


class Told:
    def __init__(self, count: int) -> None:
        self.texts = [""] * count
        self.ends: list[str | None] = [None] * count
        self.sources: set[str] = set()


async def tell(session: aiohttp.ClientSession, url: str, body: dict[str, Any], on_text: Any = None) -> Told:
    told = Told(body.get("n", 1))
    async with session.post(url + "/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for event in events(response):
            assert event is None or "error" not in event, event
            for each in (event or {}).get("choices", []):
                told.texts[each["index"]] += each["delta"].get("content") or ""
                told.ends[each["index"]] = each["finish_reason"] or told.ends[each["index"]]
                told.sources |= {run["source"] for run in each.get("runs", []) if run["accepted"]}
            if on_text is not None and any(told.texts):
                on_text()
                on_text = None
    return told


def tell_all(mesh: RunningMesh, asked: list[dict[str, Any]], at_a_time: int, **speculation: Any) -> list[Told]:
    return all_told(tell, mesh.url, [{**body, "speculation": speculation} for body in asked], at_a_time)


def test_every_answer_has_its_form_and_drafts_change_no_character(real_mesh: RunningMesh) -> None:
    asked = bodies()
    off = tell_all(real_mesh, asked, 3, off=True)
    for body, told in zip(asked, off, strict=True):
        for text, end in zip(told.texts, told.ends, strict=True):
            assert end == "length" or has_form(body, text), (body, text)
    assert sum(end == "stop" for told in off for end in told.ends) > len(off) // 2
    for method in ({}, {"method": "suffix"}, {"method": "ngram"}):
        on = tell_all(real_mesh, asked, 12, **method)
        assert [(each.texts, each.ends) for each in on] == [(each.texts, each.ends) for each in off]
        # Names of a schema, and the text of a grammar, leave no choice.
        assert "grammar" in set().union(*(each.sources for each in on))


def test_the_command_of_the_page_gives_json_of_its_schema(real_mesh: RunningMesh) -> None:
    page = Path(__file__).parents[2] / "docs/use/structured-output.md"
    [command] = re.findall(r"^\$ (curl .*?)\n```", page.read_text(), re.DOTALL | re.MULTILINE)
    here = command.replace("http://127.0.0.1:8000", real_mesh.url)
    told = json.loads(subprocess.run(["bash", "-c", here], capture_output=True, text=True, check=True).stdout)
    person = json.loads(told["choices"][0]["message"]["content"])
    assert set(person) == {"name", "age"} and isinstance(person["age"], int)


def test_a_worker_that_dies_changes_no_character(real_mesh: RunningMesh) -> None:
    body = {**bodies()[0], "max_tokens": 60}
    [calm] = tell_all(real_mesh, [body], 1)

    async def killed() -> Told:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
            return await tell(session, real_mesh.url, body, lambda: real_mesh.kill("worker"))

    told = asyncio.run(killed())
    assert (told.texts, told.ends) == (calm.texts, calm.ends)


async def complete(mesh: RunningMesh, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    body = {"model": MODEL, "prompt": "a", **fields}
    async with aiohttp.ClientSession() as session, session.post(mesh.url + "/v1/completions", json=body) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}},
         "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: missing"}}, "structured_outputs.grammar"),
        ({"guided_json": {"minLength": 3, "maxLength": 1, "type": "string"}}, "guided_json"),
        ({"guided_regex": "(("}, "guided_regex"),
        ({"guided_grammar": "nothing"}, "guided_grammar"),
        ({"guided_grammar": "root ::= nothing"}, "guided_grammar"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_cannot_be_compiled_is_a_400_that_names_its_field(
    real_mesh: RunningMesh, body: dict[str, Any], param: str, stream: bool
) -> None:
    status, told = asyncio.run(complete(real_mesh, {"stream": stream, **body}))
    assert (status, told["error"]["param"], told["error"]["code"]) == (400, param, "invalid_value")


@pytest.mark.parametrize("stream", [False, True])
def test_fields_that_leave_no_token_are_a_400_that_names_them(real_mesh: RunningMesh, stream: bool) -> None:
    body = {"guided_regex": "[0-9]{3,9}", "allowed_token_ids": [100], "stream": stream}
    status, told = asyncio.run(complete(real_mesh, body))
    assert (status, told["error"]["code"]) == (400, "invalid"), told
    assert "its grammar and allowed_token_ids exclude each other" in told["error"]["message"]
