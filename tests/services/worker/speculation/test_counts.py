"""What drafts gained, told from steps as values: no clock, no engine."""

from __future__ import annotations

import pytest

from services.api.drafter import Draft
from services.worker.running.work import Result, SequenceWork, Verdict
from services.worker.speculation.acceptance import MOST_SOURCES
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.counts import SpeculationCounts


def step_time(per_row: float = 0.001, fixed: float = 0.009, rows: range = range(1, 17)) -> StepTime:
    """A machine whose step takes `fixed` and so much more a row, seen at these sizes."""
    model = StepTime()
    for _ in range(8):
        for count in rows:
            model.learn(count, 100 * count, fixed + per_row * count)
    return model


def work(draft: int, tokens: int = 1, verify: bool = True) -> SequenceWork:
    return SequenceWork(1, [7] * tokens, 100, [0], verify, Draft([7] * draft, "s"))


def gain(counts: SpeculationCounts) -> float:
    return counts.naive_seconds / counts.drafted_seconds


def test_three_accepted_tokens_save_three_plain_steps() -> None:
    counts = SpeculationCounts()
    # Four rows take 13 ms, one takes 10: four plain steps would have taken 40.
    counts.took([work(3)], Result([Verdict([7] * 4, 3)], seconds=0.013), step_time())
    assert gain(counts) == pytest.approx(40 / 13, rel=0.05)


def test_a_rejected_draft_costs_its_rows() -> None:
    counts = SpeculationCounts()
    counts.took([work(5)], Result([Verdict([7], 0)], seconds=0.015), step_time())
    assert gain(counts) == pytest.approx(10 / 15, rel=0.05)


def test_what_is_accepted_in_a_batch_saves_a_share_of_a_step() -> None:
    counts = SpeculationCounts()
    # Eight rows; without drafts 4 sequences, 13 ms a step: two tokens more are half a step more.
    verdicts = [Verdict([7] * 3, 2), Verdict([7], 0), Verdict([7], 0), Verdict([7], 0)]
    counts.took([work(2), work(2), work(0), work(0)], Result(verdicts, seconds=0.017), step_time())
    assert gain(counts) == pytest.approx(1.5 * 13 / 17, rel=0.05)


def test_a_machine_that_is_slow_just_now_changes_nothing_of_the_ratio() -> None:
    counts = SpeculationCounts()
    counts.took([work(3)], Result([Verdict([7] * 4, 3)], seconds=0.130), step_time())
    assert counts.drafted_seconds == pytest.approx(0.130)
    assert gain(counts) == pytest.approx(40 / 13, rel=0.05)


def test_the_time_of_prompt_chunks_counts_for_both_sides() -> None:
    counts = SpeculationCounts()
    # 1 + 8 rows without the draft of 3: 18 ms, and one plain step of 10 for each of its tokens.
    counts.took([work(3), work(0, 8, verify=False)], Result([Verdict([7] * 4, 3), None], seconds=0.021), step_time())
    assert gain(counts) == pytest.approx((18 + 30) / 21, rel=0.05)


def test_steps_without_drafts_are_not_compared() -> None:
    counts = SpeculationCounts()
    counts.took([work(0)], Result([Verdict([7], 0)], seconds=0.010), step_time())
    assert counts.drafted_seconds == counts.naive_seconds == 0.0


def test_nothing_is_compared_until_a_plain_step_was_measured() -> None:
    counts = SpeculationCounts()
    counts.took([work(3)], Result([Verdict([7] * 4, 3)], seconds=0.013), StepTime())
    counts.took([work(3)], Result([Verdict([7] * 4, 3)], seconds=0.013), step_time(rows=range(4, 9)))
    assert counts.drafted_seconds == counts.naive_seconds == 0.0


def test_drafts_of_all_corpora_are_one_source_so_that_no_metric_has_a_callers_name() -> None:
    counts = SpeculationCounts()
    for source in ("corpus:merger with acme", "corpus:payroll", "suffix"):
        counts.verified(Draft([7], source), 1)
    assert {name: source.accepted for name, source in counts.sources.items()} == {"corpus": 2, "suffix": 1}


def test_many_corpora_leave_room_for_the_other_sources() -> None:
    counts = SpeculationCounts()
    for number in range(10 * MOST_SOURCES):
        counts.source(f"corpus:{number}")
    assert counts.source("suffix") is counts.sources["suffix"]
