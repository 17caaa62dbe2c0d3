"""When nobody waits for a proposer any more, and when it is asked again."""

from __future__ import annotations

import pytest

from services.worker.speculation.remote.circuit_breaker import (
    MISSES,
    PROBE_SECONDS,
    RETRY_SECONDS,
    CircuitBreaker,
)

DEADLINE = 0.02


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(DEADLINE)
    for _ in range(MISSES):
        breaker.silent(DEADLINE, now)
    return breaker


@pytest.mark.parametrize("deadline", [DEADLINE, 0.1])
def test_enough_silence_opens_it_however_it_is_divided(deadline: float) -> None:
    """Nine thirds of 0.1 add up to a little less than 0.3."""
    breaker = CircuitBreaker(deadline)
    for part in range(1, 3 * MISSES + 1):
        assert not breaker.open
        breaker.silent(deadline / 3, 0.0)
        assert breaker.open == (part == 3 * MISSES)


def test_while_open_it_allows_a_probe_now_and_then() -> None:
    breaker = opened(now=5.0)
    assert not breaker.allows(5.0 + PROBE_SECONDS / 2) and breaker.allows(5.0 + PROBE_SECONDS)
    breaker.sent(6.0)
    assert not breaker.allows(6.0 + PROBE_SECONDS / 2) and breaker.allows(6.0 + PROBE_SECONDS)


def test_an_answer_closes_it() -> None:
    breaker = opened()
    breaker.answered()
    assert not breaker.open and breaker.allows(0.0)


def test_a_failed_proposer_is_retried_soon_and_a_silent_one_later() -> None:
    breaker = CircuitBreaker(DEADLINE)
    breaker.failed(1.0)
    assert not breaker.open and not breaker.allows(1.0) and breaker.allows(1.0 + RETRY_SECONDS)
    breaker = opened()
    breaker.failed(1.0)
    assert not breaker.allows(1.0 + RETRY_SECONDS) and breaker.allows(1.0 + PROBE_SECONDS)
