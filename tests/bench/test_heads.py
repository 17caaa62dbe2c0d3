"""What a head is called, and what its folder says about its training."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.heads import Head, known_of, named, told_apart

CARD = """# eagle3 head for m

- Trained on 500 of the model's own answers (52971 tokens, temperature 0) to prompts from
  prompts.txt.
- 2 passes, 9808128 trained numbers, a draft vocabulary of 8192 tokens.
- On 28 held-out prompts (greedy, 3109 tokens): 1.37 tokens per step;
  share of drafted tokens accepted by position: 0.28, 0.07.
"""
FROM_CARD = {"method": "eagle3", "answers": 500, "tokens": 52971, "passes": 2, "tokens_per_step": 1.37}


def head(folder: Path) -> Head:
    return Head("eagle3", "eagle3", str(folder))


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ([("eagle3", "/a/x"), ("medusa", "/a/x")], ["eagle3", "medusa"]),
        ([("eagle3", "/a/x"), ("eagle3", "/a/y")], ["eagle3 x", "eagle3 y"]),
        ([("eagle3", "/a/x"), ("eagle3", "/b/x")], ["eagle3 a/x", "eagle3 b/x"]),
    ],
)
def test_heads_are_told_apart_by_as_little_as_it_takes(found: list[tuple[str, str]], names: list[str]) -> None:
    assert [each.name for each in told_apart([(method, Path(path)) for method, path in found])] == names


def test_the_same_head_twice_is_refused() -> None:
    with pytest.raises(SystemExit, match="same name"):
        told_apart([("eagle3", Path("/a/x"))] * 2)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no folder"):
        named([str(tmp_path / "none")])


def test_the_card_says_how_many_tokens_it_was_trained_on(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD)
    assert known_of(head(tmp_path)) == FROM_CARD


def test_the_trainers_figures_go_before_the_card(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD)
    (tmp_path / "training.json").write_text('{"method": "x", "tokens": 7, "tokens_per_step": 2, "answers": 1}')
    assert known_of(head(tmp_path)) == {"method": "eagle3", "tokens": 7, "tokens_per_step": 2.0, "answers": 1}


@pytest.mark.parametrize("said", ["{", "[]", '{"tokens": "many"}', '{"tokens": NaN}', '{"tokens": true}', "[" * 5000])
def test_what_is_no_number_is_left_out(said: str, tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(said)
    assert known_of(head(tmp_path)) == {"method": "eagle3"}
    (tmp_path / "README.md").write_text(CARD)
    assert known_of(head(tmp_path)) == FROM_CARD


def test_a_head_that_says_nothing_is_still_a_head(tmp_path: Path) -> None:
    assert known_of(head(tmp_path)) == {"method": "eagle3"}
