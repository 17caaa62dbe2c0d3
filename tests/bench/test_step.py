"""A step recorded with the mock engine is run again and said to be the same; one that was changed isn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import step
from services.api.drafter import Draft
from services.api.sampling import Sampling
from services.api.settings import load_settings
from services.api.strategies import Verification
from services.worker.loading import load_runner
from services.worker.running.replay import Recorder
from services.worker.running.work import NewSequence, Result, SequenceWork, Verdict, Work

PROFILE = '{"step_ms": 0, "row_us": 0, "acceptance": 0.5, "vocab_size": 1000}'
SETTINGS = {"engine": "mock", "mock_profile": PROFILE}
FLAGS = [flag for name, value in SETTINGS.items() for flag in ("--setting", f"{name}={value}")]


def recorded(path: Path, spoilt: bool = False) -> Path:
    """Two steps of one sequence, as an engine runs them: the prompt, then a draft."""
    runner = load_runner(load_settings(SETTINGS))
    recorder = Recorder(path)
    text = [100, 101, 102]
    for number in range(2):
        draft = Draft([7, 8], "x") if number else Draft()
        start = 0 if not number else len(text) - 1
        item = SequenceWork(1, text[start:], start, [0, 1], True, draft)
        new = [] if number else [NewSequence(1, Sampling(max_tokens=9), Verification(), 3, text[:])]
        work = Work([item], new)
        runner.launch(work)
        result = runner.finish()
        [verdict] = result.verdicts
        assert verdict is not None
        text += verdict.tokens
        recorder(work, Result([Verdict([1], 0)], 1.0) if spoilt and number else result)
    return path


def test_the_same_steps_give_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert step.main(["--replay", str(recorded(tmp_path / "steps")), *FLAGS]) == 0
    said = capsys.readouterr().out
    assert "| steps | 2 |" in said and "| steps with other tokens | 0 |" in said


def test_a_step_that_gave_other_tokens_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert step.main(["--replay", str(recorded(tmp_path / "steps", spoilt=True)), *FLAGS]) == 1
    assert "| steps with other tokens | 1 |" in capsys.readouterr().out


def test_times_of_then_and_now_stand_side_by_side() -> None:
    pairs = [(Result([], then), Result([], now)) for then, now in ((0.001, 0.002), (0.003, 0.002))]
    seen = step.figures(pairs)
    assert (seen["p50 then, ms"], seen["p50 now, ms"], seen["all then, s"], seen["all now, s"]) == (2, 2, 0.004, 0.004)


def test_an_empty_record_is_said(tmp_path: Path) -> None:
    (tmp_path / "steps").touch()
    with pytest.raises(SystemExit, match="no step"):
        step.main(["--replay", str(tmp_path / "steps"), *FLAGS])
