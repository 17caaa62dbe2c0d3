"""Held-out prompts: the same ones in every run, none twice, and nothing of a file but texts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bench import held_out
from bench.held_out import EDITS, KINDS, SPEC_BENCH, Sources, all_texts, lacking, prompts, sources
from services.streamer.openai.request import RequestLimits, parse_chat, parse_completion


@pytest.fixture
def found(tmp_path: Path) -> Sources:
    """Twenty questions of each category, each asked twice, and a second turn; twenty functions, compressed."""
    asked = [
        {"category": category, "turns": [f"{category} {number} of {kind}?", f"later {number}"]}
        for kind, categories in SPEC_BENCH.items()
        for category in categories
        for number in [*range(20), *range(20)]
    ]
    spec_bench, human_eval = tmp_path / "question.jsonl", tmp_path / "HumanEval.jsonl.gz"
    spec_bench.write_text("\n".join(json.dumps(each) for each in asked) + "\n")
    functions = "\n".join(json.dumps({"prompt": f"def f{number}():\n"}) for number in range(20))
    human_eval.write_bytes(gzip.compress(functions.encode()))
    return Sources(spec_bench, human_eval)


def text_of(body: held_out.Body) -> str:
    return str(body.get("prompt") or body["messages"][0]["content"])


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_the_same_for_a_seed_and_more_of_them_begin_alike(kind: str, found: Sources) -> None:
    assert prompts(kind, 6, 1, found) == prompts(kind, 14, 1, found)[:6] != prompts(kind, 6, 2, found)
    assert len(prompts(kind, 14, 1, found)) == 14


def test_no_prompt_comes_twice_in_a_kind_or_in_two(found: Sources) -> None:
    texts = [text_of(body) for kind in KINDS for body in prompts(kind, 20, 1, found)]
    assert len(texts) == len(set(texts)) == 20 * len(KINDS)


def test_a_kind_has_the_first_turns_of_its_categories(found: Sources) -> None:
    assert all(text_of(body).startswith("summarization ") for body in prompts("summary", 99, 1, found))
    assert len(prompts("summary", 99, 1, found)) == 20 and len(prompts("chat", 999, 1, found)) == 160
    assert "```python\ndef f" in text_of(prompts("code", 1, 1, found)[0])


def test_edits_rename_something_in_a_function(found: Sources) -> None:
    assert all("is called" in text_of(body) for body in prompts("edit-favourable", 40, 1, found))
    assert all("Rename the function" in text_of(body) for body in prompts("edit", 40, 1, found))


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_takes_every_prompt(kind: str, found: Sources) -> None:
    for body in prompts(kind, 3, 1, found):
        parse = parse_chat if "messages" in body else parse_completion
        parse({**body, "model": "m", "seed": 3, "temperature": 0.7}, RequestLimits())


def test_all_that_is_held_out_is_whole_files_and_later_turns(found: Sources) -> None:
    texts = set(all_texts(found, 2, 1))
    assert {"qa 19 of question?", "later 7", "def f19():\n"} <= texts
    assert {text_of(body) for kind in EDITS for body in prompts(kind, 2, 1, found)} <= texts


def test_kinds_without_their_file_say_what_they_lack() -> None:
    assert lacking("maths", Sources()) == "--spec-bench PATH"
    assert "human-eval" in lacking("code", Sources()) and lacking("edit", Sources()) == ""


def test_the_installed_package_is_read_where_no_path_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Sources
) -> None:
    (tmp_path / "human_eval" / "data").mkdir(parents=True)
    (tmp_path / "human_eval" / "__init__.py").write_text("raise AssertionError('it is not run')")
    monkeypatch.syspath_prepend(tmp_path)
    assert sources(None, None) == Sources()
    file = tmp_path / "human_eval" / "data" / "HumanEval.jsonl.gz"
    file.touch()
    assert sources(None, None) == Sources(None, file)
    assert sources(None, found.human_eval).human_eval == found.human_eval


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no file"):
        sources(tmp_path / "none.jsonl", None)


@pytest.mark.parametrize(
    "line",
    ["[]", "{", "7", '{"category": "qa"}', '{"category": "qa", "turns": []}', '{"category": "qa", "turns": [7]}'],
)
def test_lines_of_another_form_are_refused_with_the_files_name(line: str, tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    file.write_text(line)
    with pytest.raises(ValueError, match=r"question\.jsonl"):
        prompts("question", 1, 1, Sources(file))


def test_a_file_that_grows_when_it_is_unpacked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "MOST_BYTES", 1 << 20)
    file = tmp_path / "big.jsonl.gz"
    file.write_bytes(gzip.compress(b" " * (2 << 20)))
    with pytest.raises(ValueError, match="more than 1 MB"):
        prompts("code", 1, 1, Sources(human_eval=file))


def test_a_file_without_a_category_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    file.write_text('{"category": "other", "turns": ["a"]}')
    with pytest.raises(ValueError, match="no questions of the category qa"):
        prompts("question", 1, 1, Sources(file))
