"""What is counted of answers, which method runs where, and that training prompts which are held out are found."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import parser
from bench.acceptance import by_method, measure, missed
from bench.held_out import WINDOW, overlapping
from bench.streams import Heard

DOCS = Path(__file__).resolve().parents[2] / "docs"
WORDS = [f"w{number}" for number in range(40)]


def options(*flags: str) -> argparse.Namespace:
    return parser("acceptance").parse_args(flags)


def heard(text: str, steps: int, accepted: int = 0, strategy: str = "greedy") -> Heard:
    drafts: dict[str, Any] = {"verify_strategy": strategy} if accepted else {}
    return Heard(text, 11, steps, 11, 2 * accepted, accepted, 0.0, 0.5, 2.5, drafts)


def test_tokens_a_step_leave_the_prompts_step_out_and_texts_that_differ_are_a_miss() -> None:
    plain, drafted = [heard("a", 11), heard("b", 11)], [heard("a", 5, accepted=6), heard("z", 5, accepted=6)]
    tables = by_method({"naive": {"chat": plain}, "ngram:4": {"chat": drafted}})
    assert tables["naive"]["all"]["tokens_per_step"] == 1 and tables["ngram:4"]["chat"]["tokens_per_step"] == 2.5
    assert tables["ngram:4"]["all"]["accepted_of_drafted"] == 0.5
    assert missed({"0": tables}) == ["temperature 0: 1 texts of ngram:4 differ"]


@pytest.mark.parametrize(("strategy", "differ"), [("target_match", 1), ("rejection", 0)])
def test_texts_are_compared_where_the_strategy_keeps_them(strategy: str, differ: int) -> None:
    tables = by_method({"naive": {"chat": [heard("a", 11)]}, "auto": {"chat": [heard("z", 5, 6, strategy)]}})
    assert tables["auto"]["all"]["texts_differ"] == differ


@pytest.mark.parametrize(
    ("prompt", "overlaps"),
    [
        ("What  IS a\nhead?", 1),
        ("what is a head? tell me", 0),
        ("first this, then\n" + "\t".join(WORDS[7 : 7 + WINDOW]).upper(), 1),
        ("first this, then " + " ".join(WORDS[7 : 6 + WINDOW]) + " and more", 0),
    ],
)
def test_a_prompt_overlaps_by_its_whole_text_or_by_twelve_words(prompt: str, overlaps: int) -> None:
    assert overlapping([prompt], [" ".join(WORDS), "what is a head?"]) == overlaps


def test_training_prompts_that_are_held_out_are_counted_and_missed(tmp_path: Path) -> None:
    (tmp_path / "spec.jsonl").write_text('{"category": "qa", "turns": ["Who was it?", "And then?"]}\n')
    (tmp_path / "prompts.txt").write_text("who  was it?\nwho is it?\nand then?\n")
    flags = ("--only", "training", "--spec-bench", str(tmp_path / "spec.jsonl"))
    figures = measure(options(*flags, "--training", str(tmp_path / "prompts.txt")))
    assert figures["missed"] == ["2 of 3 prompts of prompts.txt are held out"]


def test_the_flags_in_the_docs_are_understood() -> None:
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    told = re.findall(r"^\$ python -m bench acceptance (.*)$", pages, re.MULTILINE)
    assert told and all(options(*shlex.split(flags)) for flags in told)
