"""Introspection: answers `Look` over the mesh with the current figures of a process. Every process has this actor.

The figures are those of the role's actor (`figures()`). Of totals it keeps the values of the last seconds, so that a
caller can compute a rate; without callers it costs nothing. It doesn't know what the figures mean. `ReadMetrics` gets
what /metrics of this process serves. With the setting `demo` it also takes a `Kill`.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from mesh.actor import Actor, Call
from mesh.clock import Clock, SystemClock
from mesh.errors import Refuse
from services.api.messages import Dying, Kill, LinkCard, Look, MetricsText, ReadMetrics, Seen

log = logging.getLogger(__name__)

INTROSPECTION = "introspection"
# Age of the earlier totals that an answer contains, at least.
LOOK_BACK = 2.0  # s
# Earlier totals older than this are dropped.
TOO_OLD = 10.0  # s
CLOSEST_NOTES = 0.1  # s
MOST_FIGURES = 128
MOST_LINKS = 16
MOST_METRICS = 2 << 20  # bytes
# Time for the answer to be sent before the process is killed.
LAST_WORD = 0.02  # s


@dataclass(slots=True)
class Figures:
    """The figures of an actor: `now` may rise and fall, `totals` only grow."""

    now: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    links: list[LinkCard] = field(default_factory=list)


class Introspection(Actor):
    handlers: ClassVar = {Look: "look", ReadMetrics: "read_metrics", Kill: "kill"}
    mailbox_size = 64

    def __init__(
        self,
        figures: Callable[[], Figures],
        *,
        metrics: Callable[[], bytes] = bytes,
        demo: bool = False,
        clock: Clock | None = None,
        kill: Callable[[int, int], object] = os.kill,
    ) -> None:
        self._figures = figures
        self._metrics = metrics
        self._demo = demo
        self._clock = clock or SystemClock()
        self._kill = kill
        self._notes: deque[tuple[float, dict[str, float]]] = deque()

    async def look(self, message: Look, call: Call) -> Seen:
        figures, now = self._figures(), self._clock.now()
        totals = _some(figures.totals)
        at, earlier = self._compared_with(now)
        if not self._notes or now - self._notes[-1][0] >= CLOSEST_NOTES:
            self._notes.append((now, totals))
        return Seen(
            figures=_some(figures.now),
            totals=totals,
            earlier=earlier,
            span=now - at,
            links=figures.links[:MOST_LINKS],
            pid=os.getpid(),
        )

    def _compared_with(self, now: float) -> tuple[float, dict[str, float]]:
        """The time and values of the earlier totals; the present time and none if nobody has asked recently."""
        notes = self._notes
        while len(notes) > 1 and now - notes[1][0] >= LOOK_BACK:
            notes.popleft()
        if notes and now - notes[0][0] > TOO_OLD:
            notes.clear()
        return notes[0] if notes else (now, {})

    async def read_metrics(self, message: ReadMetrics, call: Call) -> MetricsText:
        text = self._metrics()
        if len(text) > MOST_METRICS:
            raise Refuse("too_large", f"the metrics have {len(text)} bytes")
        return MetricsText(text=text)

    async def kill(self, message: Kill, call: Call) -> Dying:
        if not self._demo:
            raise Refuse("no_demo", "this process was started without the setting demo")
        log.warning("killed by a Kill message from %s", call.peer)
        self._clock.call_later(LAST_WORD, self._kill, os.getpid(), signal.SIGKILL)
        return Dying(pid=os.getpid())


def _some(figures: dict[str, float]) -> dict[str, float]:
    """At most MOST_FIGURES of them: their names may come from a peer."""
    return figures if len(figures) <= MOST_FIGURES else dict(list(figures.items())[:MOST_FIGURES])
