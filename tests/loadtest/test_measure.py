from __future__ import annotations

from array import array

import numpy as np
import pytest

from loadtest.measure import percentile, spread, summarise
from loadtest.outcome import FIRST, Outcome


def done(
    scheduled: float, first: float, gaps: list[float], tokens: int | None, told: list[int] | None = None, **more: object
) -> Outcome:
    last = first + sum(gaps)
    outcome = Outcome(scheduled, started=scheduled + 0.01, first=first, last=last, ended=last + 0.5)
    outcome.gaps = array("f", [FIRST, *gaps])
    outcome.told = array("I", told or [0] * (len(gaps) + 1))
    outcome.sizes = array("I", [4] * (len(gaps) + 1))
    outcome.chunks = len(gaps) + 1
    outcome.prompt_tokens, outcome.completion_tokens = 10, tokens
    for name, value in more.items():
        setattr(outcome, name, value)
    return outcome


def test_percentiles_are_values_that_were_measured() -> None:
    ordered = np.arange(1.0, 101.0)
    assert [percentile(ordered, p) for p in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert percentile(np.array([3.0]), 99) == 3.0


@pytest.mark.parametrize(
    ("count", "ranks"),
    [(1, [1, 1, 1]), (2, [1, 2, 2]), (3, [2, 3, 3]), (5, [3, 5, 5]), (10, [5, 9, 10]), (50, [25, 45, 50])],
)
def test_a_percentile_of_few_values_is_the_least_that_so_many_do_not_exceed(count: int, ranks: list[int]) -> None:
    figures = spread(range(count, 0, -1))
    assert figures is not None and [figures[name] for name in ("p50", "p90", "p99")] == ranks


def test_nothing_measured_is_none_not_zero() -> None:
    assert spread([]) is None
    figures = summarise([], 0.0)
    assert figures["ttft_s"] is None and figures["itl_s"] is None and figures["requests"]["sent"] == 0


def test_latencies_count_from_the_scheduled_time() -> None:
    figures = summarise([done(1.0, first=3.0, gaps=[0.5, 0.5], tokens=3)], wall_seconds=10)
    assert figures["ttft_s"]["p50"] == pytest.approx(2.0)
    assert figures["e2e_s"]["p50"] == pytest.approx(3.5)
    assert figures["start_lateness_s"]["max"] == pytest.approx(0.01)


def test_tokens_of_a_chunk_come_at_one_time() -> None:
    figures = summarise([done(0.0, first=1.0, gaps=[0.4, 0.6], tokens=11)], wall_seconds=2)
    assert figures["chunk_gap_s"]["n"] == 2 and figures["chunk_gap_s"]["max"] == pytest.approx(0.6)
    # Eleven tokens in three chunks: two of the ten times between them are not 0.
    assert figures["itl_s"]["n"] == 10 and figures["itl_s"]["p50"] == 0.0
    assert figures["itl_s"]["mean"] == pytest.approx(0.1) and figures["itl_s"]["max"] == pytest.approx(0.6)
    assert figures["tpot_s"]["p50"] == pytest.approx(0.1)
    assert figures["tokens"]["per_chunk"] == pytest.approx(11 / 3)
    assert figures["throughput"]["output_tokens_per_s"] == pytest.approx(5.5)


def test_without_usage_chunks_are_counted_and_that_is_said() -> None:
    figures = summarise([done(0.0, 1.0, [0.1], tokens=None)], wall_seconds=1)
    assert figures["tokens"]["output"] == 2
    assert figures["tokens"]["requests_without_usage"] == 1


def test_failed_and_abandoned_requests_stay_out_of_the_latencies() -> None:
    good = done(0.0, 1.0, [0.1], tokens=2)
    failed = done(0.0, 90.0, [9.0], tokens=2, error="http_503", detail="draining")
    left = done(0.0, 80.0, [8.0], tokens=None, abandoned=True)
    figures = summarise([good, failed, failed, left], wall_seconds=1)
    assert figures["ttft_s"]["n"] == 1 and figures["itl_s"]["n"] == 1
    assert figures["errors"] == {"http_503": 2}
    assert figures["error_examples"] == {"http_503": "draining"}
    assert figures["requests"] == {"sent": 4, "ok": 1, "failed": 2, "abandoned": 1, "error_rate": 0.5}


def test_an_answer_without_a_token_has_no_first_one() -> None:
    silent = Outcome(0.0, ended=1.0, completion_tokens=0, finish="stop")
    figures = summarise([silent], wall_seconds=1)
    assert figures["ttft_s"] is None and figures["tpot_s"] is None and figures["requests"]["ok"] == 1


def test_acceptance_is_summed_over_requests() -> None:
    said = {"num_draft_tokens": 8, "num_accepted_draft_tokens": 6, "num_spec_steps": 3}
    outcomes = [done(0.0, 1.0, [0.1], 2, speculation=said) for _ in range(2)]
    acceptance = summarise([*outcomes, done(0.0, 1.0, [0.1], 2)], 1.0)["acceptance"]
    assert acceptance["drafted"] == 16 and acceptance["accepted"] == 12 and acceptance["requests"] == 2
    assert acceptance["acceptance_rate"] == 0.75 and acceptance["accepted_per_step"] == 2.0


def test_a_server_that_says_nonsense_of_its_speculation_counts_as_silent() -> None:
    nonsense = {"num_draft_tokens": "many", "num_accepted_draft_tokens": None}
    acceptance = summarise([done(0.0, 1.0, [0.1], 2, speculation=nonsense)], 1.0)["acceptance"]
    assert acceptance["drafted"] == 0 and acceptance["acceptance_rate"] is None
