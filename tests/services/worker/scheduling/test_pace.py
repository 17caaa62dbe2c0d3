"""Steps end in time where rows cost time."""

from __future__ import annotations

from typing import Any

import pytest
from driving import request, token_for_each
from paged_fake import EOS, VOCABULARY

from services.worker.scheduling.events import Arrived
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.pace import LEAST, UNKNOWN, Pace
from services.worker.scheduling.scheduler import Scheduler


def test_rows_fit_into_the_time_of_a_step() -> None:
    pace = Pace(0.5)
    assert pace.rows == UNKNOWN
    # Too few to tell, and a step whose time isn't known.
    pace.took(LEAST - 1, 9.0)
    pace.took(200, 0.0)
    assert pace.rows == UNKNOWN
    pace.took(100, 0.2)
    assert pace.rows == pytest.approx(250, abs=1)
    for _ in range(30):
        pace.took(100, 1.0)
    assert pace.rows == pytest.approx(50, abs=1)


def make(**more: Any) -> Scheduler:
    return Scheduler(Limits(VOCABULARY, 1024, (EOS,), page_tokens=16, pages=256, method="naive", **more))


def counts(scheduler: Scheduler, steps: int) -> list[list[int]]:
    return [[len(item.tokens) for item in token_for_each(scheduler, 30)[0].items] for _ in range(steps)]


def test_a_prompt_is_cut_so_that_others_get_their_tokens_in_time() -> None:
    scheduler = make(longest_step=1.0)
    scheduler.handle(Arrived(request([1] * 8, max_tokens=50, ignore_eos=True), 1))
    assert counts(scheduler, 1) == [[8]]
    scheduler.handle(Arrived(request([2] * 400, max_tokens=5, ignore_eos=True), 2))
    # One of the rows is the first stream's.
    assert counts(scheduler, 1) == [[1, UNKNOWN - 1]]
    scheduler.took(UNKNOWN, UNKNOWN * 0.01)
    assert counts(scheduler, 2) == [[1, 99], [1, 99]]
    # However slow it is, prompts go on.
    for _ in range(40):
        scheduler.took(100, 100.0)
    assert counts(scheduler, 1) == [[1, LEAST + 1]]


def test_elsewhere_all_rows_are_taken() -> None:
    scheduler = make()
    scheduler.took(100, 100.0)
    scheduler.handle(Arrived(request([2] * 400, max_tokens=5, ignore_eos=True), 1))
    assert counts(scheduler, 1) == [[400]]
