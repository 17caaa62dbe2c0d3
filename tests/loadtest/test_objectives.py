from __future__ import annotations

import pytest
from heard import heard

from loadtest.objectives import PRESETS, is_good, objectives


def test_limits_are_seconds_with_or_without_a_unit() -> None:
    assert objectives("ttft:0.5,itl:50ms") == {"ttft": 0.5, "itl": 0.05}
    assert objectives("chat") == PRESETS["chat"]


@pytest.mark.parametrize("text", ["speed:1", "ttft", "ttft:soon", "ttft:-1", "", "ttft:1,"])
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        objectives(text)


def test_a_request_is_good_when_all_of_it_is_in_time() -> None:
    outcome = heard([4, 4, 4], told=[1, 1, 3])  # first token after 1 s, two gaps of 1 s and two of 0, ends at 9 s
    assert is_good(outcome, {"ttft": 1.0, "itl": 1.0, "tpot": 0.5, "e2e": 9.0})
    for name, late in {"ttft": 0.9, "itl": 0.9, "tpot": 0.4, "e2e": 8.9}.items():
        assert not is_good(outcome, {name: late})
    assert is_good(heard([4]), {"itl": 0.1, "tpot": 0.1})
    outcome.error = "reset"
    assert not is_good(outcome, {"ttft": 100.0})
