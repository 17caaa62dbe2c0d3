"""The harness watches itself: how late its event loop is, and how much of a core it uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from loadtest.measure import Figures, spread

LAG_INTERVAL = 0.02
# Beyond these the figures are partly the harness's own.
SATURATED_CPU = 0.9
SATURATED_LAG = 0.02
LATE_START = 0.02


class Watch:
    """Adds to every latency nothing but a tick each LAG_INTERVAL. Entered again, it goes on counting."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.lags: list[float] = []
        self.wall = self.cpu = 0.0
        self._now = now
        self._task: asyncio.Task[None] | None = None
        self._began = (0.0, 0.0)

    async def __aenter__(self) -> Watch:
        self._began = (self._now(), time.process_time())
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        self.wall += self._now() - self._began[0]
        self.cpu += time.process_time() - self._began[1]

    def figures(self) -> Figures:
        return {"cpu_share": self.cpu / max(self.wall, 1e-9), "loop_lag_s": spread(self.lags)}

    async def _tick(self) -> None:
        while True:
            due = self._now() + LAG_INTERVAL
            await asyncio.sleep(LAG_INTERVAL)
            # uvloop's timers count whole milliseconds and may fire up to one early.
            self.lags.append(max(0.0, self._now() - due))


def saturation(figures: Mapping[str, Any]) -> list[str]:
    """Sentences about what the harness itself adds; none where it isn't to blame."""
    harness = figures.get("harness") or {}
    share, lag = harness.get("cpu_share", 0.0), harness.get("loop_lag_s") or {}
    lateness = figures.get("start_lateness_s") or {}
    if share > SATURATED_CPU:
        return [f"The harness used {share:.0%} of a core: it may be the limit itself."]
    if lag.get("p99", 0.0) > SATURATED_LAG:
        return [f"The harness itself was {lag['p99'] * 1e3:,.0f} ms late (p99): latencies are partly its own."]
    if lateness.get("p99", 0.0) > LATE_START:
        return [f"Requests left {lateness['p99'] * 1e3:,.0f} ms late (p99): the harness did not keep its schedule."]
    return []
