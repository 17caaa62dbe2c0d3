"""Training prompts that were held out are counted, by whole text and by twelve words in a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.overlap import WINDOW, held_out_overlap, training_prompts

WORDS = [f"w{number}" for number in range(40)]
TEXT = " ".join(WORDS)


@pytest.mark.parametrize(
    ("prompt", "overlaps"),
    [
        ("What  IS a\nhead?", 1),
        ("what is a head? tell me", 0),
        ("first this, then " + " ".join(WORDS[7 : 7 + WINDOW]) + " and more", 1),
        ("first this, then\n" + "\t".join(WORDS[7 : 7 + WINDOW]).upper(), 1),
        ("first this, then " + " ".join(WORDS[7 : 6 + WINDOW]) + " and more", 0),
        (" ".join(reversed(WORDS)), 0),
        ("", 0),
    ],
)
def test_a_prompt_overlaps_by_its_whole_text_or_by_twelve_words(prompt: str, overlaps: int) -> None:
    assert held_out_overlap([prompt], [TEXT, "what is a head?"]) == overlaps


def test_a_prompt_counts_once_and_each_that_overlaps_counts() -> None:
    assert held_out_overlap([TEXT + TEXT, "of its own", TEXT], [TEXT, TEXT.upper()]) == 2


def test_prompts_are_read_as_the_trainer_reads_them(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}, {"role": "user", "content": "c"}]
    (tmp_path / "p.jsonl").write_text(
        json.dumps({"prompt": "a\nb"}) + "\n\n" + json.dumps({"messages": messages}) + "\n"
    )
    (tmp_path / "p.txt").write_text("{first}\n\nsecond\n")
    assert list(training_prompts(tmp_path / "p.jsonl")) == ["a\nb", "b"]
    assert [each.strip() for each in training_prompts(tmp_path / "p.txt")] == ["{first}", "second"]


@pytest.mark.parametrize("line", ["[]", "{", "{}", '{"messages": []}', '{"messages": 7}', '{"messages": ["a"]}'])
def test_lines_of_another_form_are_refused_with_the_files_name(line: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(ValueError, match=r"p\.jsonl"):
        list(training_prompts(tmp_path / "p.jsonl"))
