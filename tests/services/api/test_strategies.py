"""Which strategy a request gets, what it may ask for, and which of them promise the text of naive decoding."""

from __future__ import annotations

import math

import pytest

from kernels.verify import questions
from services.api.messages import Speculation
from services.api.sampling import Sampling
from services.api.strategies import (
    STRATEGIES,
    Verification,
    policies_for_requests,
    problem,
    strategies_for_requests,
    verification_for,
)

GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.7)


@pytest.mark.parametrize(
    ("asked", "server", "sampling", "expected"),
    [
        ("", "auto", GREEDY, "greedy"),
        ("", "auto", SAMPLED, "target_match"),
        ("auto", "rejection", SAMPLED, "rejection"),
        ("", "greedy", SAMPLED, "target_match"),
        ("greedy", "auto", SAMPLED, "target_match"),
        ("greedy", "topp", SAMPLED, "target_match"),
        ("target_match", "auto", GREEDY, "greedy"),
        ("block", "auto", SAMPLED, "block"),
        ("typical", "topp", GREEDY, "greedy"),
        ("", "topp", SAMPLED, "topp"),
    ],
)
def test_the_request_chooses_then_the_server_then_the_temperature(
    asked: str, server: str, sampling: Sampling, expected: str
) -> None:
    found = verification_for(Speculation(verify_strategy=asked), Verification(server), sampling)
    assert found.strategy == expected


def test_numbers_are_the_requests_or_the_servers() -> None:
    server = Verification("topp", "reject_all", 7, 3, 0.2, 0.5)
    assert verification_for(Speculation(), server, SAMPLED) == server
    asked = Speculation(accept_policy="normal", max_candidate_len=1, verify_window=0, typical_epsilon=0.1)
    assert verification_for(asked, server, SAMPLED) == Verification("topp", "normal", 1, 0, 0.1, 0.5)


def test_strategies_say_whether_they_keep_the_text_and_accept_all_never_does() -> None:
    lossless = {"auto", "greedy", "target_match", "rejection", "block"}
    exact = {"auto", "greedy", "target_match"}
    for name in ("auto", *STRATEGIES):
        assert Verification(name).lossless == (name in lossless)
        assert Verification(name).exact == (name in exact)
        assert not Verification(name, "accept_all").lossless and not Verification(name, "accept_all").exact
        # Nothing drafted ever stands.
        assert Verification(name, "reject_all").lossless and Verification(name, "reject_all").exact


def test_what_changes_the_text_is_served_where_it_is_allowed_or_the_servers_own() -> None:
    assert strategies_for_requests(Verification(), False) == ["greedy", "target_match", "rejection", "block"]
    assert strategies_for_requests(Verification(), True) == list(STRATEGIES)
    assert "topp" in strategies_for_requests(Verification("topp"), False)
    assert policies_for_requests(Verification(), False) == ["normal", "reject_all"]
    assert "accept_all" in policies_for_requests(Verification(), True)
    assert "accept_all" in policies_for_requests(Verification(accept_policy="accept_all"), False)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"verify_strategy": "topp"}, "topp"),
        ({"verify_strategy": "nonsense"}, "nonsense"),
        ({"accept_policy": "accept_all"}, "accept_all"),
        ({"max_candidate_len": 0}, "max_candidate_len"),
        ({"max_candidate_len": 1025}, "max_candidate_len"),
        ({"verify_window": 65}, "verify_window"),
        ({"typical_epsilon": 0.0}, "typical_epsilon"),
        ({"typical_delta": 1.5}, "typical_delta"),
        ({"typical_delta": math.nan}, "typical_delta"),
    ],
)
def test_other_wishes_are_refused_by_name(asked: dict[str, object], word: str) -> None:
    assert word in problem(Speculation(**asked), Verification(), False)  # type: ignore[arg-type]
    assert not problem(Speculation(), Verification(), False)


def test_every_strategy_has_a_code_of_the_kernels_and_help_of_one_phrase() -> None:
    for strategy in STRATEGIES.values():
        assert isinstance(getattr(questions, strategy.code), int)
        assert strategy.help and "\n" not in strategy.help and not strategy.help.endswith(".")
