"""When requests start. Knows neither their content nor how they are sent.

Open loop: a seeded sequence of start times that doesn't depend on the server. Latencies count from these times, so a
server that stalls is charged for requests that were due meanwhile. A closed loop omits these, because it sends nothing
while the server is slow.
Closed loop: a fixed number of callers, each sending its next request when its last answer has ended.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

PROCESSES = ("poisson", "gamma", "constant", "trace")
# Event loop timers have a resolution of 1 ms; the rest of a wait is spent spinning.
TIMER_STEP = 0.001


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`rate` 0 and no trace: closed loop of `concurrency` callers. Ends after `requests` starts or `duration` seconds.

    `burstiness` is the coefficient of variation of a gamma process: 1 is Poisson, above 1 gives bursts. `times` are the
    start times of a trace, which is replayed `speed` times faster.
    """

    concurrency: int = 1
    rate: float = 0.0
    process: str = "poisson"
    requests: int = 0  # 0: no limit
    duration: float = 0.0  # 0: no limit
    seed: int | str = 0
    burstiness: float = 1.0
    times: tuple[float, ...] = ()
    speed: float = 1.0

    @property
    def open_loop(self) -> bool:
        return self.rate > 0 or self.process == "trace"

    def offsets(self) -> Iterator[float]:
        """Start times of an open loop, in seconds after its beginning."""
        for number, at in enumerate(self._times()):
            if (self.requests and number >= self.requests) or (self.duration and at >= self.duration):
                return
            yield at

    def _times(self) -> Iterator[float]:
        if self.process == "trace":
            return (at / self.speed for at in self.times)
        draw = random.Random(f"arrivals/{self.seed}")
        return itertools.accumulate((self._gap(draw) for _ in itertools.repeat(None)), initial=0.0)

    def _gap(self, draw: random.Random) -> float:
        if self.process == "constant":
            return 1.0 / self.rate
        if self.process == "gamma":
            shape = 1.0 / self.burstiness**2
            return draw.gammavariate(shape, 1.0 / (shape * self.rate))
        return draw.expovariate(self.rate)


Send = Callable[[int, float], Awaitable[object]]
Now = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]


async def precisely(seconds: float) -> None:
    """Sleeps with a resolution below a millisecond. Other tasks run meanwhile, also while it spins."""
    end = time.perf_counter() + seconds
    await asyncio.sleep(max(0.0, seconds - TIMER_STEP))
    while time.perf_counter() < end:  # noqa: ASYNC110 it is the clock that is waited for
        await asyncio.sleep(0)


async def drive(arrivals: Arrivals, send: Send, *, now: Now, sleep: Sleep = precisely, first: int = 0) -> None:
    """Calls `send(index, scheduled time)` for each arrival, with indices from `first`, and waits for all calls."""
    if arrivals.open_loop:
        await _open_loop(arrivals, send, now, sleep, first)
    else:
        await _closed_loop(arrivals, send, now, first)


async def _open_loop(arrivals: Arrivals, send: Send, now: Now, sleep: Sleep, first: int) -> None:
    async with asyncio.TaskGroup() as group:
        async for index, scheduled in _paced(arrivals, now, sleep):
            group.create_task(_call(send, first + index, scheduled))


async def _paced(arrivals: Arrivals, now: Now, sleep: Sleep) -> AsyncIterator[tuple[int, float]]:
    begin = now()
    for index, offset in enumerate(arrivals.offsets()):
        scheduled = begin + offset
        # Yield even when late, so that a burst doesn't keep answers from being read.
        await sleep(max(0.0, scheduled - now()))
        yield index, scheduled


async def _closed_loop(arrivals: Arrivals, send: Send, now: Now, first: int) -> None:
    begin = now()
    indices = iter(range(first, first + arrivals.requests)) if arrivals.requests else itertools.count(first)

    async def caller() -> None:
        for index in indices:
            if arrivals.duration and now() - begin >= arrivals.duration:
                return
            await send(index, now())

    async with asyncio.TaskGroup() as group:
        for _ in range(arrivals.concurrency):
            group.create_task(caller())


async def _call(send: Send, index: int, scheduled: float) -> object:
    return await send(index, scheduled)
