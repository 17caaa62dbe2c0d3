"""What is asked, by name, from files, folders and traces."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.workloads import DRAWN, NAMES, BadWorkload, Session, Workload, edit, workload
from loadtest.workloads.session import as_chat, as_completion, extended


def text(session: Session) -> str:
    return "\n".join(str(as_completion(turn.body)["prompt"]) for turn in session.turns)


def from_file(folder: Path, *rows: dict[str, Any], name: str = "asks.jsonl", **more: Any) -> Workload:
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)))
    return workload(str(path), 0, **more)


@pytest.mark.parametrize("name", NAMES)
def test_a_session_depends_on_seed_and_index_only(name: str) -> None:
    first, again, other = (workload(name, seed).session for seed in (1, 1, 2))
    in_order = [first(index) for index in range(8)]
    assert in_order == [again(index) for index in reversed(range(8))][::-1]
    assert in_order != [other(index) for index in range(8)]
    assert len({text(session) for session in in_order}) == 8


@pytest.mark.parametrize("name", NAMES)
def test_warming_up_asks_what_is_not_asked_again(name: str) -> None:
    made = workload(name, 3).session
    warm = {text(made(-1 - index)) for index in range(4)}
    measured = {text(made(index)) for index in range(4)}
    # Of some kinds there are few, and all of them are asked sooner or later.
    assert len(warm) == 4 and (name in ("edit", "edit-favourable", "retrieval", "chat") or not warm & measured)


@pytest.mark.parametrize("name", DRAWN)
def test_every_turn_that_is_drawn_ends_with_the_user(name: str) -> None:
    for index in range(20):
        for turn in workload(name, 0).session(index).turns:
            messages = turn.body["messages"]
            assert all(message["role"] in ("system", "user", "assistant") for message in messages)
            assert messages[-1]["role"] == "user" and all(message["content"] for message in messages)


def test_a_dialogue_has_turns_with_pauses_that_flags_change() -> None:
    sessions = [workload("dialogue", 0).session(index) for index in range(30)]
    assert {len(session.turns) for session in sessions} == {2, 3, 4, 5}
    assert all(turn.think > 0 for session in sessions for turn in session.turns[1:])
    short = workload("dialogue", 0, turns=2, think=0.0).session
    assert all([turn.think for turn in short(index).turns] == [0.0, 0.0] for index in range(30))


def test_an_answer_becomes_part_of_the_next_turn() -> None:
    one, two = workload("dialogue", 0, turns=2).session(1).turns
    asked = extended(one.body, "Because.", dict(two.body))
    assert asked["messages"] == [
        *one.body["messages"], {"role": "assistant", "content": "Because."}, *two.body["messages"]
    ]  # fmt: skip
    plain = extended(as_completion(one.body), " Because.", as_completion(two.body))
    first, second = (as_completion(turn.body)["prompt"] for turn in (one, two))
    assert plain["prompt"] == f"{first} Because.\n\n{second}"


def test_shared_prefix_shares_its_system_prompt_within_a_seed() -> None:
    def system(seed: int, index: int) -> str:
        return str(workload("shared-prefix", seed).session(index).turns[0].body["messages"][0]["content"])

    assert len({system(1, index) for index in range(10)}) == 1
    assert system(1, 0) != system(2, 0) and len(system(1, 0)) > 3000


def test_json_shows_how_it_is_done_and_asks_for_what_the_sentences_say() -> None:
    prompt = workload("json", 2).session(5).turns[0].body["prompt"]
    shown = prompt.split("JSON:\n")[1].split("\n\n")[0].splitlines()
    assert all(f"{person['name']}, {person['age']} years old" in prompt for person in map(json.loads, shown))
    assert prompt.endswith("JSON:\n") and prompt.count(" years old") == 10


def test_edit_takes_every_function_of_its_modules_within_the_size() -> None:
    names = [name for name, _ in edit.functions()]
    for module in edit.MODULES:
        for name, function in vars(importlib.import_module(module)).items():
            if inspect.isfunction(function) and function.__module__ == module and function.__name__ == name:
                source = inspect.getsource(function).rstrip()
                if edit.LEAST <= len(source) <= edit.MOST and source.startswith("def "):
                    assert name in names, (module, name)
    assert all(edit.LEAST <= len(source) <= edit.MOST for _, source in edit.functions())


def test_edit_asks_for_a_function_under_another_name_and_begins_no_answer() -> None:
    bodies = edit.requests(2 * len(edit.functions()), 0)
    for body in bodies:
        (message,) = body["messages"]
        assert message["role"] == "user" and message["content"].endswith("\n```")
        ast.parse(message["content"].partition("```python\n")[2].removesuffix("```"))
    assert len({body["messages"][0]["content"] for body in bodies}) == len(bodies)
    known = [source for _, source in edit.functions()]
    in_order = [body["messages"][0]["content"].partition("```python\n")[2].removesuffix("\n```") for body in bodies]
    begin = known.index(in_order[0])
    assert in_order[: len(known)] == known[begin:] + known[:begin]


def test_only_edit_is_cold() -> None:
    assert [name for name in NAMES if workload(name, 0).cold] == ["edit"]


def test_a_fixed_prompt_is_asked_every_time() -> None:
    asked = workload("chat", 0, prompt="Hello?").session
    assert asked(0) is asked(7) and text(asked(0)) == "Hello?"


def test_lines_of_a_file_are_requests_with_their_fields_in_an_order_of_the_seed(tmp_path: Path) -> None:
    rows: tuple[dict[str, Any], ...] = (
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "top_p": 0.5},
        {"prompt": "b"},
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "theirs", "messages": [{"role": "user", "content": "c"}]}},
    )  # fmt: skip
    asked = from_file(tmp_path, *rows).session
    bodies = [dict(asked(index).turns[0].body) for index in range(3)]
    for body in (rows[0], {"prompt": "b"}, {"messages": [{"role": "user", "content": "c"}]}):
        assert body in bodies
    assert asked(0) == asked(3)


def test_conversations_of_share_gpt_keep_what_people_said(tmp_path: Path) -> None:
    said = [
        ("system", "Be short."), ("gpt", "Hello"), ("human", "Why?"), ("gpt", "So."), ("human", "And how?"),
    ]  # fmt: skip
    row = {"id": "x", "conversations": [{"from": who, "value": what} for who, what in said], "think": 0.5}
    (tmp_path / "chats.json").write_text(json.dumps([row]))
    session = workload(str(tmp_path / "chats.json"), 0).session(0)
    assert [turn.body["messages"] for turn in session.turns] == [
        [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}],
        [{"role": "user", "content": "And how?"}],
    ]
    assert [turn.think for turn in session.turns] == [0.0, 0.5]


def test_turns_of_a_question_follow_each_other(tmp_path: Path) -> None:
    session = from_file(tmp_path, {"question_id": 81, "category": "x", "turns": ["c", "d"]}).session(0)
    assert [dict(turn.body) for turn in session.turns] == [
        {"messages": [{"role": "user", "content": "c"}]}, {"messages": [{"role": "user", "content": "d"}]}
    ]  # fmt: skip


def test_files_of_a_folder_are_shown_with_what_is_to_be_done(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one.py").write_text("x" * 100)
    (tmp_path / "two.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "three.md").write_text("Three.")
    asked = workload(str(tmp_path), 0, instruction="Shorten it.", most_characters=10).session
    seen = {text(asked(index)) for index in range(2)}
    assert seen == {"File deep/one.py:\n\n" + "x" * 10 + "\n\nShorten it.", "File three.md:\n\nThree.\n\nShorten it."}


def test_a_trace_comes_in_the_order_of_its_times_from_the_first(tmp_path: Path) -> None:
    trace = from_file(tmp_path, {"prompt": "late", "timestamp": 7.5}, {"prompt": "early", "timestamp": 5})
    assert trace.times == (0.0, 2.5)
    assert [text(trace.session(index)) for index in range(2)] == ["early", "late"]


def test_a_trace_without_texts_gets_some_of_its_lengths_that_begin_alike_where_its_blocks_do(tmp_path: Path) -> None:
    trace = from_file(
        tmp_path,
        {"timestamp": 0, "input_length": 1000, "output_length": 7, "hash_ids": [1, 2]},
        {"timestamp": 1500, "input_length": 800, "output_length": 9, "hash_ids": [1, 3]},
    )
    one, two = (trace.session(index).turns[0].body for index in range(2))
    assert trace.times == (0.0, 1.5) and (one["max_tokens"], two["max_tokens"]) == (7, 9)
    assert len(one["prompt"]) == 5000 and len(two["prompt"]) == 4000
    assert one["prompt"][:2500] == two["prompt"][:2500] and one["prompt"][2600:] != two["prompt"][2600:]


@pytest.mark.parametrize(
    "line",
    [
        "", "{", "17", '{"x": 1}', '{"messages": []}', '{"prompt": 5}', '{"prompt": "a", "max_tokens": 0}',
        '{"prompt": "a", "timestamp": "noon"}', '{"input_length": "long"}', '{"conversations": [{"from": "gpt"}]}',
    ],
)  # fmt: skip
def test_a_file_of_something_else_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "asks.jsonl"
    path.write_text(line)
    with pytest.raises(BadWorkload, match=r"asks\.jsonl"):
        workload(str(path), 0)


def test_what_is_not_there_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(BadWorkload, match="retrieval"):
        workload("chta", 0)
    with pytest.raises(BadWorkload, match="No such file"):
        workload("nowhere.jsonl", 0)
    with pytest.raises(BadWorkload, match="no files with text"):
        workload(str(tmp_path), 0)


def test_what_is_asked_can_be_asked_the_other_way() -> None:
    conversation = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "stop": ["x"]}
    assert as_completion(conversation) == {"prompt": "s\n\nu", "stop": ["x"]}
    assert as_chat({"prompt": "p", "stop": ["x"]}) == {"messages": [{"role": "user", "content": "p"}], "stop": ["x"]}
