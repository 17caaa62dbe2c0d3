"""Asks the workers whether they still answer, when no request has shown it for a while. `reasons` is part of readiness.

The directory repeats what a process says of itself; a thread that computes can be stuck behind that. The answer to
Describe comes from this thread. It costs no step and no cache page, and no metric counts it as a request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from mesh.clock import Clock

log = logging.getLogger("specmesh.streamer")

EVERY = 5.0  # seconds without a token of any request before the workers are asked
AGAIN = 1.0  # seconds between questions while none answers


class Probe:
    def __init__(
        self, unanswered: Callable[[], Awaitable[list[str]]], arrivals: Callable[[], int], clock: Clock
    ) -> None:
        """`unanswered` asks the workers (Peers); `arrivals` grows with the tokens of requests."""
        self.reasons: list[str] = []
        self._unanswered = unanswered
        self._arrivals = arrivals
        self._clock = clock

    async def run(self) -> None:
        """Until it is cancelled."""
        before = self._arrivals()
        while True:
            await self._clock.sleep(AGAIN if self.reasons else EVERY)
            reasons = await self._unanswered() if self._arrivals() == before else []
            if (now := self._arrivals()) != before:
                before, reasons = now, []
            if reasons != self.reasons:
                log.warning("%s", "; ".join(reasons) or "the workers answer again")
            self.reasons = reasons
