"""`specmesh capacity`: what is measured, and what is recommended from it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.capacity.advice import advised, per_stream_mb
from services.cli.capacity.measure import Limits, Measured, Target, measured
from services.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
LIMITS = Limits(max_sequences=64, max_context=2048, kv_tokens=60_000)
FOUND = Measured(
    LIMITS, at_rest_mb=1000.0, first_token_s=0.5, tokens_per_s={1: 40.0, 4: 100.0, 16: 200.0, 64: 210.0},
    memory_mb={1: 1010.0, 4: 1050.0, 16: 1200.0, 64: 1640.0},
)  # fmt: skip


def test_more_streams_than_bring_more_tokens_are_not_recommended() -> None:
    advice = advised(FOUND, kv_mb=1024.0, prompt_tokens=400, answer_tokens=200)
    assert advice.max_sequences == 16
    # Half a second for the prompt, a second for the answer beside fifteen others; four fifths of that rate.
    assert advice.requests_per_s == pytest.approx(0.8 / 1.5)
    assert advice.seconds_each == pytest.approx(16 * 1.5 * 0.8)
    assert advice.memory_mb == pytest.approx(1.1 * 2024)
    assert per_stream_mb(FOUND) == pytest.approx(10.0)


def test_texts_that_fill_the_pages_bound_the_streams() -> None:
    advice = advised(FOUND, kv_mb=0.0, prompt_tokens=7000, answer_tokens=500)
    assert advice.max_sequences == 8
    # The rate of four streams, which were measured.
    assert advice.requests_per_s == pytest.approx(0.8 / (0.5 * 7000 / 400 + 500 / 100))
    assert advice.memory_mb == pytest.approx(1.1 * 1640)
    assert advised(FOUND, 0.0, 400_000, 1).max_sequences == 1


class Machine(Target):
    """200 tokens/s at most, 50 for one stream."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.held = 500.0

    def memory(self) -> float:
        return self.held

    def speed(self, streams: int, tokens: int) -> float:
        self.asked.append((streams, tokens))
        self.held = 500.0 + streams
        return min(200.0, 50.0 * streams)

    def first_token(self, rounds: int) -> float:
        return 0.25


def test_each_number_of_streams_within_the_limits_takes_about_its_time() -> None:
    machine = Machine()
    found = measured(machine, Limits(16, 2048, 60_000), seconds=10.0, tell=lambda what: None)
    assert found.tokens_per_s == {1: 50.0, 4: 200.0, 16: 200.0}
    assert found.memory_mb == {1: 501.0, 4: 504.0, 16: 516.0} and found.at_rest_mb == 500.0
    # One stream of 500 tokens takes ten seconds; the others as much if they are no faster together.
    assert machine.asked[-3:] == [(1, 500), (4, 125), (16, 125)]


def test_answers_stay_within_the_context() -> None:
    machine = Machine()
    measured(machine, Limits(4, 100, 60_000), seconds=100.0, tell=lambda what: None)
    assert max(tokens for _, tokens in machine.asked) <= 100 - 16


@pytest.mark.slow
def test_a_mesh_is_measured_and_ended() -> None:
    """By the command that docs/operate/operating.md prints, with made-up tokens and less time."""
    page = (ROOT / "docs" / "operate" / "operating.md").read_text()
    [printed] = re.findall(r"^\$ specmesh (capacity .*)", page, re.MULTILINE)
    made_up = ["--model=smollm2-135m-instruct", "--engine=mock"]
    less = ["--max-sequences=4", "--seconds=0.2", "--kv-cache-mb=16", "--json"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    command = [sys.executable, "-m", "services.cli", *shlex.split(printed), *made_up, *less]
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["measured"]["tokens_per_s"].keys() == {"1", "4"} and told["measured"]["limits"]["kv_tokens"] > 0
    assert told["measured"]["at_rest_mb"] > 50 and told["recommended"]["requests_per_s"] > 0


def test_lengths_are_whole_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["capacity", "--prompt-tokens", "0"])
    assert "0 is no whole number from 1" in capsys.readouterr().err
