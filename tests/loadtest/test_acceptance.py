from __future__ import annotations

import pytest

from loadtest.acceptance import acceptance, by_position, wasted


def test_what_answers_say_is_summed() -> None:
    said = {"num_draft_tokens": 8, "num_accepted_draft_tokens": 6, "num_spec_steps": 2}
    seen = acceptance([said, None, said])
    assert seen is not None
    assert (seen["requests"], seen["drafted"], seen["accepted"], seen["steps"]) == (2, 16, 12, 4)
    assert seen["acceptance_rate"] == 0.75 and seen["accepted_per_step"] == 3.0
    # Four steps of five rows computed twenty, of which four were for nothing.
    assert seen["wasted_rows"] == pytest.approx(0.2)
    assert acceptance([None, {}]) is None


def test_a_place_counts_where_a_draft_reached_it() -> None:
    told = {"acceptance_histogram_by_draft_length": {"1": [1, 3], "3": [0, 2, 0, 2]}}
    assert by_position([told]) == [7 / 8, 2 / 4, 2 / 4]
    assert by_position([told, told]) == by_position([told])


@pytest.mark.parametrize("told", [None, [1], {"x": [1], "999999999": [1], "2": 5}])
def test_what_a_server_says_otherwise_is_left_out(told: object) -> None:
    assert by_position([{"acceptance_histogram_by_draft_length": told}, {}]) == []


def test_no_rows_waste_nothing() -> None:
    assert wasted(0, 0, 0) is None and wasted(5, 0, 0) == 0.0
