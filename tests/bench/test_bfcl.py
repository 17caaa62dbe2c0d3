"""Questions of bfcl-eval as requests, without the package: its files are a few lines here."""

from __future__ import annotations

import json
from pathlib import Path

from bench.oracles.bfcl import as_schema, body_of, questions

TYPES = {"dict": "object", "float": "number", "tuple": "array"}
QUESTION = {
    "id": "simple_0",
    "question": [[{"role": "user", "content": "How large?"}]],
    "function": [{"name": "geo.area", "parameters": {"type": "dict", "required": ["type"], "properties": {
        "type": {"type": "string"}, "sides": {"type": "tuple", "items": {"type": "float"}}}}}],
}  # fmt: skip


def test_types_of_python_become_those_of_a_schema_at_any_depth() -> None:
    """A parameter may be called type, too."""
    (function,) = QUESTION["function"]
    assert as_schema(function["parameters"], TYPES) == {  # type: ignore[index]
        "type": "object", "required": ["type"], "properties": {
            "type": {"type": "string"}, "sides": {"type": "array", "items": {"type": "number"}}},
    }  # fmt: skip


def test_a_question_of_one_answer_asks_for_one_call() -> None:
    simple, parallel = (body_of(QUESTION, each, TYPES, model="m") for each in ("simple_python", "parallel"))
    assert (simple["parallel_tool_calls"], parallel["parallel_tool_calls"]) == (False, True)
    assert simple["messages"] == [{"role": "user", "content": "How large?"}] and simple["model"] == "m"
    assert [each["function"]["name"] for each in simple["tools"]] == ["geo.area"]


def test_questions_come_with_their_answers(tmp_path: Path) -> None:
    (tmp_path / "data" / "possible_answer").mkdir(parents=True)
    for folder, line in (("data", QUESTION), ("data/possible_answer", {"id": "simple_0", "ground_truth": [{"f": {}}]})):
        (tmp_path / folder / "BFCL_v4_simple.json").write_text(f"{json.dumps(line)}\n" * 3)
    assert list(questions(tmp_path, "simple", 2)) == [(QUESTION, [{"f": {}}])] * 2
