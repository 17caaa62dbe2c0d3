"""Threads for texts by their length: a text waits only for texts of about its own length.

    up to 4 KiB ─▶ 2 threads     up to 64 KiB ─▶ 1     up to 1 MiB ─▶ 1     longer ─▶ 1

The library encodes without Python's lock, so a long text takes a thread for seconds, and a processor's time, but holds
up neither the event loop nor shorter texts. Knows lengths, not what is done with a text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from mesh.errors import Busy

T = TypeVar("T")


class Lane:
    """`longest`: the length of the longest text in it. `held`: the length of all that wait or run."""

    def __init__(self, longest: int, threads: int) -> None:
        self.longest = longest
        self.held = 0
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix=f"encode-{longest}")


class Lanes:
    MOST_HELD = 32 << 20  # characters in each lane: long texts don't take the room of short ones

    def __init__(self) -> None:
        self._lanes = (Lane(1 << 12, 2), Lane(1 << 16, 1), Lane(1 << 20, 1), Lane(1 << 62, 1))

    @contextmanager
    def hold(self, length: int) -> Iterator[None]:
        """Room for a text of this length. Raises Busy when there is none."""
        lane = self._lane(length)
        if lane.held and lane.held + length > self.MOST_HELD:
            raise Busy(f"texts of {lane.held} characters wait to be encoded")
        lane.held += length
        try:
            yield
        finally:
            lane.held -= length

    async def run(self, length: int, work: Callable[[], T]) -> T:
        """`work`, in a thread for a text of this length."""
        return await asyncio.get_running_loop().run_in_executor(self._lane(length).threads, work)

    def close(self) -> None:
        for lane in self._lanes:
            lane.threads.shutdown(wait=False, cancel_futures=True)

    def _lane(self, length: int) -> Lane:
        return next(lane for lane in self._lanes if length <= lane.longest)
