"""The fake clock fires timers in order when it is moved, and only then; the real one runs on the loop."""

from __future__ import annotations

import asyncio

from mesh_doubles.clock import FakeClock

from mesh.clock import SystemClock


async def test_timers_fire_in_order_when_time_is_moved() -> None:
    clock, fired = FakeClock(), []
    clock.call_later(2.0, lambda: fired.append(("late", clock.now())))
    clock.call_later(1.0, lambda: fired.append(("early", clock.now())))
    begin = clock.now()
    await clock.settle()
    assert fired == []
    await clock.advance(5.0)
    assert fired == [("early", begin + 1.0), ("late", begin + 2.0)]
    assert clock.now() == begin + 5.0


async def test_timers_set_by_timers_fire_on_the_same_way() -> None:
    clock, ticks = FakeClock(), []

    def tick() -> None:
        ticks.append(clock.now())
        clock.call_later(1.0, tick)

    clock.call_later(1.0, tick)
    await clock.advance(4.5)
    assert len(ticks) == 4


async def test_a_cancelled_timer_does_not_fire() -> None:
    clock, fired = FakeClock(), []
    clock.call_later(1.0, fired.append, 1).cancel()
    await clock.advance(2.0)
    assert fired == []


async def test_sleepers_wake_when_their_time_has_come() -> None:
    clock = FakeClock()
    sleeping = asyncio.ensure_future(clock.sleep(3.0))
    await clock.advance(2.9)
    assert not sleeping.done()
    await clock.advance(0.2)
    assert sleeping.done()


async def test_the_real_clock_runs_and_fires() -> None:
    clock, fired = SystemClock(), asyncio.Event()
    begin = clock.now()
    clock.call_later(0.001, fired.set)
    await asyncio.wait_for(fired.wait(), 5.0)
    await clock.sleep(0)
    assert clock.now() > begin
