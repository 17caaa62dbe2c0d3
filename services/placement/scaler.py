"""Autoscaling as it runs in the keeper: looks at the workers' queues once a second and says how many there should be.
The decision itself is autoscale.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from mesh.directory.membership import Member
from services.api.messages import Seen
from services.placement.autoscale import Since, WorkerLoad, autoscale, mean_queue

LOOK_EVERY = 1.0  # s

Look = Callable[[Member], Awaitable[Seen | None]]


class Scaler:
    """`bounds`: the least and the most workers; no most: it never scales."""

    def __init__(self, bounds: tuple[int, int], shrink_after: float, look: Look, now: float) -> None:
        self._bounds, self._shrink_after, self._look = bounds, shrink_after, look
        self._since, self._looked_at = Since(), now
        self._queue: float | None = None
        self._last = ""
        self._last_at = now

    async def wanted(self, members: Sequence[Member], count: int, now: float) -> int:
        """How many there should be where `count` were wanted until now."""
        if not self._bounds[1] or now - self._looked_at < LOOK_EVERY:
            return count
        self._looked_at = now
        ready = [member for member in members if member.role == "worker" and member.state == "ready"]
        seen = await asyncio.gather(*(self._look(member) for member in ready))
        loads = [load_of(each) for each in seen if each is not None]
        self._queue = mean_queue(loads)
        self._since, wanted = autoscale(self._since, loads, count, self._bounds, now, self._shrink_after)
        if wanted != count:
            why = f"requests wait {self._queue:.1f} s" if wanted > count else "no request waits"
            self._last, self._last_at = f"{count} → {wanted}: {why}", now
        return wanted

    def widen(self, count: int) -> None:
        """What was asked for isn't undone by autoscaling."""
        if self._bounds[1]:
            self._bounds = (min(self._bounds[0], count), max(self._bounds[1], count))
            self._since = Since()

    def status(self, now: float) -> dict[str, object] | None:
        """None: the number of workers is what was asked for."""
        if not self._bounds[1]:
            return None
        return {
            "least": self._bounds[0], "most": self._bounds[1], "queue_s": self._queue, "last": self._last,
            "last_s_ago": now - self._last_at if self._last else None,
        }  # fmt: skip

    @property
    def last(self) -> str:
        return self._last


def load_of(seen: Seen) -> WorkerLoad:
    now, ended = seen.figures, seen.totals.get("ended", 0.0) - seen.earlier.get("ended", 0.0)
    return WorkerLoad(
        int(now.get("waiting", 0)), int(now.get("running", 0)), int(now.get("max_sequences", 0)), ended, seen.span
    )
