from __future__ import annotations

import asyncio
import statistics
import time
from itertools import pairwise

import pytest

from loadtest.arrivals import Arrivals, drive, precisely


class FakeClock:
    """Time that moves only when someone sleeps."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert list(Arrivals(rate=4, process="constant", requests=4).offsets()) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_have_the_rate_and_its_variance() -> None:
    offsets = list(Arrivals(rate=50, requests=20_000, seed=3).offsets())
    gaps = [after - before for before, after in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.03)
    assert variance == pytest.approx(1 / 50**2, rel=0.08)


def test_a_seed_gives_the_same_arrivals_and_another_gives_others() -> None:
    first, again, other = (list(Arrivals(rate=9, requests=50, seed=seed).offsets()) for seed in (1, 1, 2))
    assert first == again != other


def test_duration_ends_the_open_loop() -> None:
    assert len(list(Arrivals(rate=10, process="constant", duration=1.95).offsets())) == 20


async def test_an_open_loop_starts_requests_on_time_though_none_has_ended() -> None:
    clock, starts, release = FakeClock(), list[tuple[int, float]](), asyncio.Event()

    async def send(index: int, scheduled: float) -> None:
        starts.append((index, scheduled))
        if len(starts) == 5:
            release.set()
        await release.wait()

    arrivals = Arrivals(rate=2, process="constant", requests=5)
    await drive(arrivals, send, now=clock.now, sleep=clock.sleep)
    assert starts == [(k, 100.0 + k / 2) for k in range(5)]


async def test_a_late_harness_still_passes_on_the_time_it_was_due() -> None:
    clock, scheduled_times = FakeClock(), list[float]()

    async def slow_sleep(seconds: float) -> None:
        await clock.sleep(seconds + 1.0)

    async def send(index: int, scheduled: float) -> None:
        scheduled_times.append(scheduled)

    await drive(Arrivals(rate=10, process="constant", requests=3), send, now=clock.now, sleep=slow_sleep)
    assert scheduled_times == pytest.approx([100.0, 100.1, 100.2])


async def test_a_closed_loop_keeps_its_callers_busy_and_no_more() -> None:
    clock, at_once, most, seen = FakeClock(), 0, 0, list[int]()

    async def send(index: int, scheduled: float) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        seen.append(index)
        await asyncio.sleep(0)
        at_once -= 1

    await drive(Arrivals(concurrency=3, requests=20), send, now=clock.now)
    assert most == 3
    assert sorted(seen) == list(range(20))


async def test_duration_ends_the_closed_loop() -> None:
    clock, sent = FakeClock(), 0

    async def send(index: int, scheduled: float) -> None:
        nonlocal sent
        sent += 1
        await clock.sleep(1.0)

    await drive(Arrivals(concurrency=1, duration=3.5), send, now=clock.now)
    assert sent == 4


def gaps_of(**kind: object) -> list[float]:
    starts = list(Arrivals(rate=50, requests=20_000, **kind).offsets())  # type: ignore[arg-type]
    return [after - before for before, after in pairwise(starts)]


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 3.0])
def test_gamma_arrivals_come_at_the_rate_and_as_bursty_as_told(burstiness: float) -> None:
    gaps = gaps_of(process="gamma", burstiness=burstiness)
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.1)
    assert statistics.pstdev(gaps) / mean == pytest.approx(burstiness, rel=0.1)


def test_a_trace_has_its_own_times_and_may_be_replayed_faster() -> None:
    trace = Arrivals(process="trace", times=(0.0, 1.0, 5.0), speed=2.0)
    assert trace.open_loop and list(trace.offsets()) == [0.0, 0.5, 2.5]
    assert list(Arrivals(process="trace", times=(0.0, 1.0, 5.0), duration=2.0).offsets()) == [0.0, 1.0]


async def test_indices_begin_where_they_are_told_to() -> None:
    seen: list[int] = []

    async def send(index: int, scheduled: float) -> None:
        seen.append(index)

    clock = FakeClock()
    await drive(Arrivals(requests=2), send, now=clock.now, first=7)
    await drive(Arrivals(rate=9, requests=2), send, now=clock.now, sleep=clock.sleep, first=9)
    assert seen == [7, 8, 9, 10]


async def test_a_precise_sleep_never_ends_early() -> None:
    for seconds in (0.0, 0.0004, 0.0023):
        before = time.perf_counter()
        await precisely(seconds)
        assert time.perf_counter() - before >= seconds
