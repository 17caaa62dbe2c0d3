from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.workloads import GENERATORS, BadWorkload, Prompt, read_jsonl, workload


@pytest.mark.parametrize("name", GENERATORS)
def test_a_prompt_depends_on_seed_and_index_only(name: str) -> None:
    first, again, other = workload(name, 1), workload(name, 1), workload(name, 2)
    in_order = [first(index) for index in range(8)]
    backwards = [again(index) for index in reversed(range(8))]
    assert in_order == backwards[::-1]
    assert in_order != [other(index) for index in range(8)]
    assert len({prompt.text() for prompt in in_order}) > 4


@pytest.mark.parametrize("name", GENERATORS)
def test_every_prompt_is_a_conversation_that_ends_with_the_user(name: str) -> None:
    for index in range(20):
        messages = workload(name, 0)(index).messages
        assert all(message["role"] in ("system", "user", "assistant") for message in messages)
        assert all(message["content"] for message in messages)
        assert messages[-1]["role"] == "user"


def test_shared_prefix_shares_its_system_prompt_within_a_seed() -> None:
    one, other = workload("shared-prefix", 1), workload("shared-prefix", 2)
    assert len({one(index).messages[0]["content"] for index in range(10)}) == 1
    assert one(0).messages[0] != other(0).messages[0]
    assert len(one(0).messages[0]["content"]) > 3000


def test_retrieval_asks_for_a_paragraph_that_is_there() -> None:
    text = workload("retrieval", 5)(3).text()
    wanted = text.rpartition("Quote paragraph [")[2].partition("]")[0]
    assert f"[{wanted}] The " in text


def test_a_fixed_prompt_is_asked_every_time() -> None:
    asked = workload("chat", 0, prompt="Hello?")
    assert asked(0) is asked(7) and asked(0).text() == "Hello?"


def test_a_file_holds_conversations_prompts_or_turns(tmp_path: Path) -> None:
    path = tmp_path / "asks.jsonl"
    path.write_text(
        '{"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}\n'
        '\n{"prompt": "b"}\n{"question_id": 81, "turns": ["c", "d"]}\n'
    )
    prompts = read_jsonl(path)
    assert [prompt.text() for prompt in prompts] == ["a", "b", "c"]
    assert [prompt.max_tokens for prompt in prompts] == [5, None, None]
    from_file = workload(str(path), 3)
    assert sorted(from_file(index).text() for index in range(3)) == ["a", "b", "c"]
    assert from_file(0) == from_file(3)


@pytest.mark.parametrize(
    "text",
    ["", "{", "17", '{"x": 1}', '{"messages": []}', '{"prompt": 5}', '{"prompt": "a", "max_tokens": 0}'],
)
def test_a_file_of_something_else_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "asks.jsonl"
    path.write_text(text)
    with pytest.raises(BadWorkload, match=r"asks\.jsonl"):
        read_jsonl(path)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadWorkload, match="retrieval"):
        workload("chta", 0)
    with pytest.raises(BadWorkload, match="No such file"):
        workload("nowhere.jsonl", 0)


def test_a_conversation_can_be_joined_to_plain_text() -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert Prompt(turns).text() == "s\n\nu"
