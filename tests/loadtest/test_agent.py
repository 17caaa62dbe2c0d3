"""The agent that was recorded: its tools, its script, its sessions; recording against a scripted server."""

from __future__ import annotations

import ast
import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from loadtest.workloads import agent
from loadtest.workloads.agent import record, script
from loadtest.workloads.agent.project import FILES, NAME
from loadtest.workloads.agent.tools import FUNCTIONS, SCHEMAS, called

PRICES = f"{NAME}/prices.py"
ARGUMENTS = {each["function"]["name"]: each["function"]["parameters"] for each in SCHEMAS}


def test_tools_work_on_the_files() -> None:
    files = dict(FILES)
    assert called(files, "list_files", {"folder": NAME}).count("\n") == len(FILES) - 1
    assert called(files, "search", {"text": "TAX ="}) == f"{PRICES}:3: TAX = 19"
    edit = {"path": PRICES, "first": 3, "last": 4, "new": "TAX = 7"}
    assert called(files, "replace_lines", edit) == f"lines 3 to 4 of {PRICES} are replaced"
    assert called(files, "read_file", {"path": PRICES}).splitlines()[2:4] == ["TAX = 7", ""]
    assert FILES[PRICES].splitlines()[2] == "TAX = 19"
    assert called(files, "calculate", {"expression": "(3 + 4) * 12 - 100 // 7"}) == "70"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list_files", {"folder": "nowhere"}), ("read_file", {"path": "nowhere.py"}),
        ("replace_lines", {"path": PRICES, "first": 9, "last": 8, "new": ""}),
        ("replace_lines", {"path": PRICES, "first": 1, "last": 400, "new": ""}),
        ("calculate", {"expression": "1 / 0"}), ("calculate", {"expression": "__import__('os')"}),
        ("calculate", {"expression": "9 ** 9 ** 9"}), ("calculate", {"expression": "3 +"}),
    ],
)  # fmt: skip
def test_a_tool_that_fails_tells_the_model(name: str, arguments: dict[str, Any]) -> None:
    files = dict(FILES)
    assert called(files, name, arguments).startswith("error: ") and files == FILES


def test_every_tool_is_described_with_its_arguments() -> None:
    assert list(FUNCTIONS) == list(ARGUMENTS)
    for name, parameters in ARGUMENTS.items():
        own = FUNCTIONS[name].__code__.co_varnames[1 : FUNCTIONS[name].__code__.co_argcount]
        assert list(own) == list(parameters["properties"]) == parameters["required"]


def test_a_script_asks_for_an_edit_of_a_function_that_is_there() -> None:
    for number in range(30):
        steps = script.session(number)
        assert [step.calls for step in steps] == [True] * 5 + [False] and len(steps) == agent.TURNS
        words = steps[3].says.split()
        first, last, path = int(words[2]), int(words[4]), words[6].rstrip(",")
        lines = FILES[path].splitlines()[first - 1 : last]
        [function] = ast.parse("\n".join(line.removeprefix(lines[0][: -len(lines[0].lstrip())]) for line in lines)).body
        assert isinstance(function, ast.FunctionDef) and f"the function {function.name}:" in steps[3].says


def test_the_recorded_calls_follow_their_schemas_and_the_results_are_the_tools() -> None:
    recorded = agent.recorded()
    assert recorded["tools"] == SCHEMAS and recorded["beginning"] == record.beginning()
    assert len(recorded["sessions"]) == record.SESSIONS and agent.RECORDED.stat().st_size < 300_000
    for said in recorded["sessions"]:
        files = dict(FILES)
        for answer, result in itertools.pairwise(said):
            if "tool_calls" not in answer:
                continue
            [call] = answer["tool_calls"]
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            jsonschema.validate(arguments, ARGUMENTS[name])
            assert result["tool_call_id"] == call["id"] and result["content"] == called(files, name, arguments)


def test_each_request_of_a_session_is_the_one_before_with_its_answer_and_what_followed() -> None:
    bodies = agent.session(7)
    assert len(bodies) == agent.TURNS
    for one, other in itertools.pairwise(bodies):
        before, after = one["messages"], other["messages"]
        assert after[: len(before)] == before
        assert [each["role"] for each in after[len(before) :]] == ["assistant", "tool", "user"]
    assert [body["tool_choice"] for body in bodies] == ["required"] * 5 + ["none"]


def test_after_the_last_session_the_project_has_another_name() -> None:
    count = record.SESSIONS * agent.TURNS
    bodies = [json.dumps(body) for body in agent.requests(2 * count, 3)]
    assert len(set(bodies[agent.TURNS - 1 :: agent.TURNS])) == 2 * record.SESSIONS
    names = [{name for name in agent.NAMES if name in body} for body in bodies]
    assert names == [{agent.NAMES[3]}] * count + [{agent.NAMES[4]}] * count


def test_recording_runs_the_tools_and_leaves_out_what_was_cut_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def answer(url: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        call = {"id": "x", "type": "function", "function": {"name": "search", "arguments": '{"text": "TAX ="}'}}
        said = {"content": None, "tool_calls": [call]} if body["tool_choice"] == "required" else {"content": "Done."}
        return {"message": said, "finish_reason": "length" if len(asked) == 3 else "stop"}

    monkeypatch.setattr(record, "ask", answer)
    monkeypatch.setattr(record, "SESSIONS", 2)
    monkeypatch.setattr(record, "RECORDED", tmp_path / "sessions.json")
    record.main("http://nowhere")
    told = json.loads((tmp_path / "sessions.json").read_text())
    assert len(asked) == 3 + 2 * agent.TURNS and len(told["sessions"]) == 2
    # The third was cut off: both are of later numbers.
    assert told["sessions"][0][3]["content"] == script.session(1)[1].says
    assert told["sessions"][0][2]["content"] == f"{PRICES}:3: TAX = 19"
    assert told["sessions"][0][-1] == {"role": "assistant", "content": "Done."}
