"""What a row says of sides that answered many prompts in turns; the sides themselves are measured, not tested here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.__main__ import parser as bench_parser
from bench.oracles.offline import HTTP, OURS, VLLM, Turn, _vllm, compared, in_turns


def test_sides_take_turns_with_prompts_of_their_own_and_the_first_only_warms_up() -> None:
    asked: list[tuple[str, int, list[str]]] = []
    options = bench_parser("offline").parse_args(["--prompts=2", "--turns=2", "--pause=0"])

    def side(name: str, seconds: float):  # type: ignore[no-untyped-def]
        def turn(prompts, number):  # type: ignore[no-untyped-def]
            asked.append((name, number, list(prompts)))
            return Turn(60, seconds)

        return turn

    found = in_turns({OURS: side(OURS, 1.0), HTTP: side(HTTP, 2.0)}, map(str, range(9)), options)
    assert [(name, number) for name, number, _ in asked] == [
        (HTTP, 0), (OURS, 0), (OURS, 1), (HTTP, 1), (HTTP, 2), (OURS, 2)
    ]  # fmt: skip
    assert [prompts for _, _, prompts in asked[::2]] == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert {name: len(seen) for name, seen in found.items()} == {OURS: 2, HTTP: 2}
    with pytest.raises(SystemExit, match="enough for 1 turns"):
        in_turns({OURS: side(OURS, 1.0)}, map(str, range(3)), options)


def test_a_bar_that_is_missed_and_answers_of_other_lengths_are_told() -> None:
    ours = [Turn(100, 1.0, 0.002)] * 4
    found = compared({OURS: ours, HTTP: ours, VLLM: [Turn(100, 4.0)] * 4})
    assert found["missed"] == [] and found["ratio"][VLLM]["ratio"] == 4.0 and found["ratio"][HTTP]["ratio"] == 1.0
    assert found["client_ms"] == {OURS: 2.0, HTTP: 2.0}
    slow = compared({OURS: ours, VLLM: [*[Turn(100, 1.0)] * 3, Turn(90, 1.0)]})
    assert [each.partition(":")[0] for each in slow["missed"]] == [
        "LLM.generate of vLLM", "the sides answered with different numbers of tokens"
    ]  # fmt: skip


def test_whose_turn_is_first_makes_no_ratio() -> None:
    first, second = Turn(100, 1.0), Turn(100, 1.25)
    found = compared({OURS: [first, second] * 2, HTTP: [second, first] * 2})
    assert found["ratio"][HTTP] == {"ratio": 1.0, "low": 1.0, "high": 1.0}


def test_an_interpreter_without_vllm_says_so() -> None:
    options = bench_parser("offline").parse_args([])
    with pytest.raises(SystemExit, match=r"No module named 'vllm'"), _vllm(sys.executable, Path("m"), options):
        pass
