"""Which method runs on which server, in which order, and what each is asked; a whole run has a mock engine."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from bench import acceptance
from bench.__main__ import parser
from bench.acceptance import Way, answers, held_out, measure, settings, ways
from bench.heads import Head
from bench.held_out import Sources
from bench.speculation import Method
from bench.streams import Heard

ROOT = Path(__file__).resolve().parents[2]
HEAD = Head("eagle3", "eagle3", "/heads/e")


def options(*flags: str) -> argparse.Namespace:
    return parser("acceptance", acceptance).parse_args(flags)


def test_methods_run_without_a_head_and_heads_alone_and_with_auto() -> None:
    chosen = ways(["naive", "ngram", "auto"], [4, 8], [HEAD])
    assert [(way.head, way.method.label) for way in chosen] == [
        ("", "naive"), ("", "ngram:4"), ("", "ngram:8"), ("", "auto"),
        ("eagle3", "eagle3:4"), ("eagle3", "eagle3:8"), ("eagle3", "auto + eagle3"),
    ]  # fmt: skip
    asked = {way.method.label: way.method.speculation for way in chosen}
    assert asked["eagle3:8"] == {"method": "eagle3", "num_speculative_tokens": 8}
    assert asked["auto + eagle3"] == asked["auto"] == {"method": "auto"}


def test_a_head_without_auto_runs_alone() -> None:
    chosen = ways(["naive"], [4], [Head("eagle3 b", "eagle3", "/b")], trees=True)
    assert [each.method.label for each in chosen] == ["naive", "eagle3 b:4", "eagle3 b:4+trees"]
    assert [each.method.speculation.get("trees") for each in chosen] == [None, None, True]
    chosen = ways(["naive"], [4], [Head("eagle3 b", "eagle3", "/b")])
    assert chosen[1:] == [Way("eagle3 b", Method("eagle3 b:4", {"method": "eagle3", "num_speculative_tokens": 4}))]


@pytest.mark.parametrize("name", ["eagle3", "nothing"])
def test_a_method_that_needs_a_head_is_refused_by_name(name: str) -> None:
    with pytest.raises(SystemExit, match=name):
        ways([name], [4], [])


def test_only_a_heads_server_has_a_head() -> None:
    asked = options("--setting", "threads=1")
    assert settings(asked, "/heads/e")["draft_model"] == "/heads/e" and settings(asked, "")["threads"] == "1"
    assert settings(asked, "")["draft_model"] == "none", "also not the one that comes with specmesh"


def test_a_row_is_left_only_where_it_is_asked_for() -> None:
    assert options().no_row and not options("--row").no_row


def test_each_prompt_goes_to_all_methods_in_turn_with_a_salt_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, str, int]] = []
    salts: list[str] = []

    def send(mesh: Any, body: dict[str, Any], how: Method, salt: str) -> Heard:
        assert body["temperature"] == 0.7
        sent.append((mesh, how.label, body["seed"]))
        salts.append(salt)
        return Heard(how.label, 2, 2, 2, 0, 0, 0.0, 0.0, 1.0)

    monkeypatch.setattr(acceptance, "send", send)
    chosen = ways(["naive", "auto"], [4], [HEAD])
    meshes: Any = {"": "plain", "eagle3": "with the head"}
    heard = answers(meshes, chosen, {"chat": [{"messages": []}] * 2, "edit": [{"prompt": ""}]}, 0.7)
    assert [each[1] for each in sent[:8]] == [
        "naive", "auto", "eagle3:4", "auto + eagle3", "auto", "eagle3:4", "auto + eagle3", "naive",
    ]  # fmt: skip
    assert {(mesh, label) for mesh, label, _ in sent} == {
        ("plain", "naive"), ("plain", "auto"), ("with the head", "eagle3:4"), ("with the head", "auto + eagle3"),
    }  # fmt: skip
    assert [seed for *_, seed in sent] == [0] * 4 + [1] * 4 + [0] * 4
    assert len(set(salts)) == len(salts) == 12
    assert list(heard) == ["naive", "auto", "eagle3:4", "auto + eagle3"]
    assert all({kind: len(own) for kind, own in by.items()} == {"chat": 2, "edit": 1} for by in heard.values())


def test_kinds_that_lack_a_file_are_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    bodies = held_out(options("--prompts-per-kind", "3", "--max-tokens", "64"), Sources())
    assert {kind: len(own) for kind, own in bodies.items()} == {"edit": 3}
    assert all(body["max_tokens"] == 64 for body in bodies["edit"])
    assert "chat: left out, it needs --spec-bench PATH" in capsys.readouterr().out


def test_without_prompts_or_with_an_unknown_kind_it_ends() -> None:
    with pytest.raises(SystemExit, match="no prompts"):
        held_out(options("--kinds", "chat"), Sources())
    with pytest.raises(SystemExit, match="no kind 'poems'"):
        held_out(options("--kinds", "poems"), Sources())


def test_training_prompts_that_are_held_out_are_counted_and_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.jsonl").write_text('{"category": "qa", "turns": ["Who was it?", "And then?"]}\n')
    (tmp_path / "prompts.txt").write_text("who  was it?\nwho is it?\nand then?\n")
    flags = ("--only", "training", "--spec-bench", str(tmp_path / "spec.jsonl"))
    figures = measure(options(*flags, "--training", str(tmp_path / "prompts.txt")))
    assert figures["training"] == {"prompts.txt": {"prompts": 3, "overlap": 2}}
    assert figures["missed"] == ["2 of 3 prompts of prompts.txt are held out"]
    assert "prompts.txt: 2 of 3 prompts are held out" in capsys.readouterr().out


def test_a_run_compares_methods_over_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.jsonl").write_text('{"category": "writing", "turns": ["Who was it?"]}\n')
    figures = measure(
        options(
            "--spec-bench", str(tmp_path / "spec.jsonl"), "--kinds", "chat,edit", "--prompts-per-kind", "1",
            "--methods", "naive,ngram,auto", "--lengths", "4", "--max-tokens", "12",
            "--setting", "engine=mock", "--setting", 'mock_profile={"step_ms": 1, "vocab_size": 49152}',
        )
    )  # fmt: skip
    assert figures["prompts"] == {"chat": 1, "edit": 1} and set(figures["temperatures"]) == {"0", "0.7"}
    for tables in figures["temperatures"].values():
        assert list(tables) == ["naive", "ngram:4", "auto"]
        assert {(seen["all"]["prompts"], seen["all"]["tokens"]) for seen in tables.values()} == {(2, 24)}
        # The prompt's step gives one token of twelve, and without drafts each of the others takes a step.
        assert tables["naive"]["all"]["steps"] == 22 and tables["naive"]["all"]["tokens_per_step"] == 1
    assert figures["missed"] == []
    assert "temperature 0.7, tokens a step" in capsys.readouterr().out


def test_the_flags_in_the_docs_are_understood() -> None:
    told = re.findall(r"^\$ python -m bench acceptance (.*)$", (ROOT / "docs" / "heads.md").read_text(), re.MULTILINE)
    first, second = (options(*shlex.split(flags)) for flags in told)
    assert first.draft_model == "my-head" and first.training == [Path("prompts.txt")]
    assert second.only == "curve" and len(second.curve) == 3
