"""When requests start. Knows nothing of what they are or how they are sent.

Open loop: a seeded sequence of start times, which nothing the server does can change. Latencies are counted
from these times, so a server that stalls is charged for the requests that should have started meanwhile
(the omission a closed loop commits: it stops asking while the server is slow).
Closed loop: a fixed number of callers, each asking again when its answer ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`rate` 0: closed loop of `concurrency` callers. Ends after `requests` starts or `duration` seconds."""

    concurrency: int = 1
    rate: float = 0.0
    process: str = "poisson"  # poisson | constant
    requests: int = 0  # 0: no limit
    duration: float = 0.0  # 0: no limit
    seed: int = 0

    @property
    def open_loop(self) -> bool:
        return self.rate > 0

    def offsets(self) -> Iterator[float]:
        """Start times of an open loop, seconds after its beginning."""
        draw = random.Random(f"arrivals/{self.seed}")
        at = 0.0
        number = 0
        while not (self.requests and number >= self.requests):
            if self.duration and at >= self.duration:
                return
            yield at
            number += 1
            at += draw.expovariate(self.rate) if self.process == "poisson" else 1.0 / self.rate


Send = Callable[[int, float], Awaitable[object]]
Now = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]


async def drive(arrivals: Arrivals, send: Send, *, now: Now, sleep: Sleep = asyncio.sleep) -> None:
    """Calls `send(index, scheduled time)` by the plan and returns when every call has."""
    if arrivals.open_loop:
        await _open_loop(arrivals, send, now, sleep)
    else:
        await _closed_loop(arrivals, send, now)


async def _open_loop(arrivals: Arrivals, send: Send, now: Now, sleep: Sleep) -> None:
    async with asyncio.TaskGroup() as group:
        async for index, scheduled in _paced(arrivals, now, sleep):
            group.create_task(_call(send, index, scheduled))


async def _paced(arrivals: Arrivals, now: Now, sleep: Sleep) -> AsyncIterator[tuple[int, float]]:
    begin = now()
    for index, offset in enumerate(arrivals.offsets()):
        scheduled = begin + offset
        wait = scheduled - now()
        # Even when late, let the loop breathe: a burst must not keep answers from being read.
        await sleep(wait if wait > 0 else 0)
        yield index, scheduled


async def _closed_loop(arrivals: Arrivals, send: Send, now: Now) -> None:
    begin = now()
    indices = iter(range(arrivals.requests)) if arrivals.requests else iter(range(1 << 62))

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
