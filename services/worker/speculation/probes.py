"""What hasn't paid is tried again now and then, for a small share of the time: texts change."""

from __future__ import annotations

from services.worker.speculation.prepared import Way

SHARE = 0.003


class Probes:
    def __init__(self) -> None:
        # Seconds of steps since the last probe.
        self._since: dict[Way, float] = {"ahead": 0.0, "waited": 0.0, "head": 0.0}

    def passed(self, seconds: float) -> None:
        for way in self._since:
            self._since[way] += seconds

    def due(self, way: Way, seconds: float) -> bool:
        """Whether to try once, at this cost."""
        if self._since[way] * SHARE < seconds:
            return False
        self._since[way] = 0.0
        return True
