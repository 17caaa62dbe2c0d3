"""Monitors the harness itself: the lag of its event loop and its CPU use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from loadtest.measure import Figures, spread

LAG_INTERVAL = 0.02
# Above these limits the harness distorts the figures.
SATURATED_CPU = 0.9
SATURATED_LAG = 0.02
LATE_START = 0.02


class Watch:
    """Costs one tick every LAG_INTERVAL. Continues counting when entered again."""

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
            # uvloop's timers have a resolution of 1 ms and may fire up to 1 ms early.
            self.lags.append(max(0.0, self._now() - due))


def saturation(figures: Mapping[str, Any]) -> list[str]:
    """Sentences about distortion by the harness; none if there is none."""
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
