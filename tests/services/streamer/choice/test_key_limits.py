"""Requests and tokens a minute, with a clock that the test moves."""

from __future__ import annotations

from services.streamer.choice.key_limits import KeyLimits


class Clock:
    time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_minutes_requests_may_come_at_once_and_then_one_by_one() -> None:
    clock = Clock()
    limits = KeyLimits(4, 0, clock)
    assert [limits.exceeded(b"a") for _ in range(4)] == [None] * 4
    over = limits.exceeded(b"a")
    assert over is not None
    name, error = over
    assert (name, error.status, error.code, error.retry_after) == ("requests", 429, "rate_limit_exceeded", 15)
    assert error.message == "This API key has used its 4 requests of a minute (key_requests_per_minute)"
    assert limits.exceeded(b"b") is None  # another key has its own
    clock.time += 14.5
    over = limits.exceeded(b"a")
    assert over is not None
    assert over[1].retry_after == 1
    clock.time += 0.5
    assert limits.exceeded(b"a") is None
    assert limits.exceeded(b"a") is not None


def test_what_is_not_used_is_not_saved_beyond_a_minute() -> None:
    clock = Clock()
    limits = KeyLimits(2, 0, clock)
    assert limits.exceeded(b"a") is None
    clock.time += 3600.0
    assert [limits.exceeded(b"a") is None for _ in range(3)] == [True, True, False]


def test_tokens_are_paid_at_the_end_and_what_is_owed_is_waited_for() -> None:
    clock = Clock()
    limits = KeyLimits(0, 600, clock)  # 10 a second
    assert limits.exceeded(b"a") is None
    limits.spend(b"a", 700)
    over = limits.exceeded(b"a")
    assert over is not None
    assert (over[0], over[1].retry_after) == ("tokens", 11)  # 100 that are owed, and one
    clock.time += 10.2
    assert limits.exceeded(b"a") is None
    limits.spend(b"a", 2)
    assert limits.exceeded(b"a") is not None


def test_the_time_of_a_request_does_not_pay_for_what_it_used_beyond_a_full_bucket() -> None:
    clock = Clock()
    limits = KeyLimits(0, 600, clock)
    assert limits.exceeded(b"a") is None
    clock.time += 60.0
    limits.spend(b"a", 600)
    assert limits.exceeded(b"a") is not None


def test_a_request_that_a_limit_keeps_out_uses_nothing_of_the_other() -> None:
    clock = Clock()
    limits = KeyLimits(1, 60, clock)
    limits.spend(b"a", 61)
    over = limits.exceeded(b"a")
    assert over is not None and over[0] == "tokens"
    clock.time += 2.0
    assert limits.exceeded(b"a") is None


def test_without_limits_nothing_is_counted() -> None:
    limits = KeyLimits(0, 0, Clock())
    limits.spend(b"a", 10**9)
    assert limits.exceeded(b"a") is None
    assert not limits._buckets
