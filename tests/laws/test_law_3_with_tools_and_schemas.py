"""Law 3 where answers have a form: schemas, tools, penalties and seeds mixed, through a whole mesh with the default
model in 8 bits, drafters and settings. And every answer that ends by itself has its form."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "flow"))

from running_mesh import RunningMesh, running_mesh
from sse_client import MODEL, all_told

from loadtest.workloads import agent, schemas

pytestmark = pytest.mark.model

Body = dict[str, Any]
COUNT = 300
REGEX = "[A-Z][a-z]{2,8}( [a-z]{2,7}){3,6}[.]"
CHOICE = ["the baker", "the teacher", "the sailor from the north"]
GRAMMAR = 'start: "I would take " THING (" and " THING)? "."\nTHING: "a lamp" | "a kettle" | /a [a-z]{3,9}/'
OF_GRAMMAR = "I would take (a lamp|a kettle|a [a-z]{3,9})( and (a lamp|a kettle|a [a-z]{3,9}))?[.]"
FORMS: list[Body] = [
    {"structured_outputs": {"regex": REGEX}}, {"structured_outputs": {"choice": CHOICE}},
    {"structured_outputs": {"grammar": GRAMMAR}}, {},
]  # fmt: skip
SAMPLINGS: list[Body] = [
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0, "repetition_penalty": 1.15},
    {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 0.6},
    {"temperature": 0.7, "top_k": 40, "frequency_penalty": 0.4},
    {"temperature": 0.9, "n": 2},
    {"temperature": 0, "frequency_penalty": 0.3},
]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), dtype="int8") as running:
        yield running


def mixed(count: int) -> list[Body]:
    """Of three requests one has a schema, one tools, one another form or none."""
    held, called = schemas.requests(count, 11), agent.requests(count, 11)
    found = []
    for place in range(count):
        words = {"messages": [{"role": "user", "content": f"What would you take to house {place}?"}], "max_tokens": 48}
        other = {**words, **FORMS[place // 3 % len(FORMS)]}
        # Every step of an agent's session, and sessions apart from each other.
        tools = called[place // 3 * 7 % count]
        found.append([held[place // 3], tools, other][place % 3] | SAMPLINGS[place % len(SAMPLINGS)] | {"seed": place})
    return found


class Said:
    """The choices of an answer, as a client sees them, but for the ids of calls, which are random."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.choices = []
        for each in answer["choices"]:
            message = each["message"]
            calls = [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()]
            self.choices.append((message["content"], calls, each["finish_reason"]))


async def ask(session: aiohttp.ClientSession, url: str, body: Body) -> Said:
    async with session.post(url + "/v1/chat/completions", json={"model": MODEL, **body}) as response:
        answer = await response.json()
    assert response.status == 200, (answer, body)
    return Said(answer)


def ask_all(mesh: RunningMesh, bodies: list[Body], at_a_time: int, **more: Any) -> list[Said]:
    return all_told(ask, mesh.url, [{**body, **more} for body in bodies], at_a_time, 1700.0)


def check(body: Body, said: Said) -> int:
    """Every choice has its form; the number of those that were cut off, which may have none."""
    cut = 0
    for content, calls, reason in said.choices:
        if reason == "length":
            cut += 1
        elif body.get("tool_choice") == "required":
            assert content is None and reason == "tool_calls"
            [(name, arguments)] = calls
            tools = {each["function"]["name"]: each["function"]["parameters"] for each in body["tools"]}
            jsonschema.validate(json.loads(arguments), tools[name])
        else:
            assert not calls and reason == "stop"
            check_text(body, content)
    return cut


def check_text(body: Body, text: str) -> None:
    outputs = body.get("structured_outputs", {})
    if "response_format" in body:
        jsonschema.validate(json.loads(text), body["response_format"]["json_schema"]["schema"])
    elif "choice" in outputs:
        assert text in CHOICE
    elif outputs:
        assert re.fullmatch(REGEX if "regex" in outputs else OF_GRAMMAR, text), text


# Of the fast tests, tests/flow/test_structured_output.py and test_tools.py have forms, and draws, beside each other.
@pytest.mark.slow
def test_drafts_change_no_character_of_answers_that_have_a_form(mesh: RunningMesh) -> None:
    bodies = mixed(COUNT)
    before = mesh.by_label("worker", "specmesh:draft_source_accepted_tokens_total", "source")
    off = ask_all(mesh, bodies, 16, speculation={"off": True}, cache_salt="off")
    assert mesh.by_label("worker", "specmesh:draft_source_accepted_tokens_total", "source") == before
    for at_a_time in (1, 16):
        on = ask_all(mesh, bodies, at_a_time, cache_salt=f"on {at_a_time}")
        differ = [place for place in range(COUNT) if on[place].choices != off[place].choices]
        assert not differ, [(bodies[place], off[place].choices, on[place].choices) for place in differ[:2]]
    cut = sum(check(body, said) for body, said in zip(bodies, off, strict=True))
    assert cut < COUNT / 3
    after = mesh.by_label("worker", "specmesh:draft_source_accepted_tokens_total", "source")
    assert {source for source, tokens in after.items() if tokens > before.get(source, 0)} >= {"grammar", "ngram"}


@pytest.mark.slow
def test_of_two_thousand_answers_none_leaves_its_form(mesh: RunningMesh) -> None:
    held, called = schemas.requests(1200, 12), agent.requests(1000, 12)
    bodies = held + [body for body in called if body["tool_choice"] == "required"][:800]
    bodies = [{**body, "temperature": 0.8, "top_p": 0.95, "seed": place} for place, body in enumerate(bodies)]
    answers = ask_all(mesh, bodies, 16)
    cut = sum(check(body, said) for body, said in zip(bodies, answers, strict=True))
    print(f"{len(answers)} answers, {cut} were cut off")
    assert len(answers) == 2000 and cut < 200
