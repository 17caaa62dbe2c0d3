"""When a worker more, or one less, is wanted."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.placement.autoscale import (
    GROW_AFTER,
    STANDSTILL,
    Since,
    WorkerLoad,
    autoscale,
    queue_seconds,
)

IDLE = WorkerLoad(waiting=0, running=0, room=64, ended=0, span=2)
BUSY = WorkerLoad(waiting=0, running=60, room=64, ended=10, span=2)
LONG = WorkerLoad(waiting=50, running=64, room=64, ended=10, span=2)
BOUNDS = (1, 4)
SHRINK_AFTER = 60.0


def run(
    loads: list[WorkerLoad], seconds: float, wanted: int, bounds: tuple[int, int] = BOUNDS, step: float = 1.0
) -> int:
    """What is wanted after a time with these loads, when the workers come at once (each as the last one)."""
    since, now = Since(), 0.0
    while now <= seconds:
        since, wanted = autoscale(since, (loads + [loads[-1]] * wanted)[:wanted], wanted, bounds, now, SHRINK_AFTER)
        now += step
    return wanted


def test_the_queue_time_is_what_waits_divided_by_what_ends() -> None:
    assert queue_seconds(LONG) == 10.0
    assert queue_seconds(IDLE) == queue_seconds(BUSY) == 0.0
    assert queue_seconds(WorkerLoad(1, 64, 64, ended=0, span=2)) == STANDSTILL
    assert queue_seconds(WorkerLoad(1, 64, 64, ended=0, span=0)) == STANDSTILL


def test_a_long_queue_adds_a_worker_after_a_while_and_never_more_than_the_most() -> None:
    assert run([LONG], GROW_AFTER - 1, 1) == 1
    assert run([LONG], GROW_AFTER, 1) == 2
    assert run([LONG], 1000, 1) == 4


def test_idle_workers_go_one_by_one_down_to_the_least() -> None:
    assert run([IDLE], SHRINK_AFTER - 1, 3) == 3
    assert run([IDLE], SHRINK_AFTER, 3) == 2
    assert run([IDLE], 1000, 3, bounds=(2, 4)) == 2


def test_busy_workers_without_a_queue_stay() -> None:
    assert run([BUSY], 1000, 3) == 3


def test_a_queue_that_comes_and_goes_changes_nothing() -> None:
    since, wanted = Since(), 2
    for second in range(1000):
        load = LONG if second % 3 else IDLE
        since, wanted = autoscale(since, [load, load], wanted, BOUNDS, float(second), SHRINK_AFTER)
        assert wanted == 2


def test_nothing_changes_while_a_worker_is_on_its_way() -> None:
    since, wanted = Since(), 1
    for second in range(10):
        since, wanted = autoscale(since, [LONG], wanted, BOUNDS, float(second), SHRINK_AFTER)
    assert wanted == 2


def test_bounds_that_change_are_obeyed_at_once() -> None:
    assert autoscale(Since(), [], 9, (1, 4), 0.0, SHRINK_AFTER)[1] == 4
    assert autoscale(Since(), [], 1, (2, 4), 0.0, SHRINK_AFTER)[1] == 2


LOADS = st.builds(WorkerLoad, st.integers(0, 99), st.integers(0, 64), st.just(64), st.integers(0, 99), st.just(2.0))


# On a loaded machine the first draw takes seconds.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds=st.lists(st.tuples(LOADS, st.floats(0.1, 50.0)), max_size=60))
def test_a_change_is_by_one_within_the_bounds_and_never_sooner_than_a_queue_has_been_long(
    rounds: list[tuple[WorkerLoad, float]],
) -> None:
    since, wanted, now, changed = Since(), 1, 0.0, 0.0
    for load, passed in rounds:
        now += passed
        before = wanted
        since, wanted = autoscale(since, [load] * wanted, wanted, BOUNDS, now, SHRINK_AFTER)
        assert BOUNDS[0] <= wanted <= BOUNDS[1] and abs(wanted - before) <= 1
        if wanted != before:
            assert now - changed >= GROW_AFTER
            changed = now
