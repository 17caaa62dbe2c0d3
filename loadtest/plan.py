"""A run as a value: the requests, their times, the servers, and the loads of a sweep."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from loadtest.arrivals import Arrivals
from loadtest.ask import LoadRequest, Side
from loadtest.objectives import Objectives
from loadtest.workloads.session import Workload

ALONE = Side("")
# Approximate duration of an open loop's block, long enough to reach its rate.
BLOCK_SECONDS = 5.0
LEAST_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """`points` are the rates, or else the concurrencies, of a sweep; they replace the value in `arrivals`."""

    url: str
    ask: LoadRequest
    workload: Workload
    arrivals: Arrivals
    points: tuple[float, ...] = ()
    sides: tuple[Side, ...] = ()
    block: int = 0  # sessions of a side in each turn; 0: set by the load
    pause: float = 0.0  # seconds before each turn of a side
    shared_cache: bool = False
    cold: bool = False
    limits: Objectives | None = None
    api_key: str = ""
    timeout: float = 600.0
    warmup: int = 0
    disconnect: float = 0.0
    keep_text: bool = False
    metrics_urls: tuple[str, ...] = ()

    @property
    def each_side(self) -> tuple[Side, ...]:
        return self.sides or (ALONE,)

    def at(self) -> list[Arrivals]:
        if self.arrivals.process == "trace":
            return [self.arrivals]
        if self.arrivals.open_loop:
            each = [replace(self.arrivals, rate=rate) for rate in self.points or (self.arrivals.rate,)]
        else:
            callers = self.points or (self.arrivals.concurrency,)
            each = [replace(self.arrivals, concurrency=int(count)) for count in callers]
        return [one if one.requests or one.duration else replace(one, requests=self._enough(one)) for one in each]

    def _enough(self, arrivals: Arrivals) -> int:
        """The default number of requests. Each side needs several blocks for a confidence interval."""
        if arrivals.open_loop:
            return max(LEAST_REQUESTS, math.ceil(arrivals.rate * BLOCK_SECONDS * (4 if self.sides else 2)))
        return max(LEAST_REQUESTS, arrivals.concurrency * (8 if self.sides else 4))
