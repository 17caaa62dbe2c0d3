"""Which strategy a request gets, and which of them promise the text of naive decoding."""

from __future__ import annotations

import pytest

from services.messages import Sampling
from services.target.verify.policy import is_lossless, strategy_for
from services.target.verify.registry import STRATEGIES

GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.7)


@pytest.mark.parametrize(
    ("asked", "default", "sampling", "expected"),
    [
        ("", "auto", GREEDY, "greedy"),
        ("", "auto", SAMPLED, "target_match"),
        ("", "greedy", SAMPLED, "target_match"),
        ("greedy", "auto", SAMPLED, "target_match"),
        ("greedy", "target_match", GREEDY, "greedy"),
        ("target_match", "auto", GREEDY, "target_match"),
        ("", "target_match", GREEDY, "target_match"),
    ],
)
def test_the_request_chooses_then_the_server_then_the_temperature(
    asked: str, default: str, sampling: Sampling, expected: str
) -> None:
    assert strategy_for(asked, default, sampling) == expected


def test_strategies_say_whether_they_keep_the_text_and_accept_all_never_does() -> None:
    for name in STRATEGIES:
        assert is_lossless(name, "normal") and is_lossless(name, "reject_all")
        assert not is_lossless(name, "accept_all")
