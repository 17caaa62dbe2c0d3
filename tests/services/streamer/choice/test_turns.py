"""How the event loop is divided: so much work in a turn, first come, first served."""

from __future__ import annotations

import asyncio

from services.streamer.choice.turns import Turns


class Loop:
    """Counts the work between two turns of the running loop."""

    def __init__(self) -> None:
        self.turns: list[int] = [0]
        self._loop = asyncio.get_running_loop()
        self._turn()

    def _turn(self) -> None:
        self.turns.append(0)
        self._handle = self._loop.call_soon(self._turn)

    def work(self, units: int) -> None:
        self.turns[-1] += units

    def stop(self) -> list[int]:
        self._handle.cancel()
        return [units for units in self.turns if units]


async def slices(turns: Turns, loop: Loop, units: int, count: int) -> None:
    for _ in range(count):
        await turns.take(units)
        loop.work(units)


async def test_many_requests_together_do_no_more_in_a_turn_than_it_has_room_for() -> None:
    turns, loop = Turns(100), Loop()
    await asyncio.gather(*(slices(turns, loop, 30, 20) for _ in range(50)))
    worked = loop.stop()
    assert sum(worked) == 50 * 20 * 30
    assert max(worked) == 120


async def test_a_turn_with_room_lets_work_through_without_waiting() -> None:
    turns, loop = Turns(100), Loop()
    await slices(turns, loop, 10, 10)
    assert loop.stop() == [100]


async def test_a_slice_larger_than_a_turn_has_one_of_its_own() -> None:
    turns, loop = Turns(100), Loop()
    await asyncio.gather(*(slices(turns, loop, 1000, 2) for _ in range(3)))
    assert loop.stop() == [1000] * 6


async def test_who_came_first_goes_first() -> None:
    turns = Turns(1)
    done: list[int] = []

    async def one(number: int) -> None:
        await turns.take(1)
        done.append(number)

    await asyncio.gather(*(one(number) for number in range(20)))
    assert done == list(range(20))


async def test_a_cancelled_request_takes_no_room_from_the_others() -> None:
    turns, loop = Turns(100), Loop()
    first = asyncio.create_task(slices(turns, loop, 100, 1))
    waiting = [asyncio.create_task(slices(turns, loop, 50, 1)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in waiting[:8]:
        task.cancel()
    await asyncio.gather(first, *waiting, return_exceptions=True)
    assert loop.stop() == [100, 100]
