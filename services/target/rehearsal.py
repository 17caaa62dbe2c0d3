"""Walks once through the code that runs between two steps, shortly before a step that runs elsewhere ends.

    the step          |─────────────────────────────────────────────|
    the step thread    settle, ask, foresee │ prepare │ (sleeps) │ walk │ (waits) ‖ the same code, for real
                                                       lead: ───────────────────

In the milliseconds of a step whoever else is on the machine has the processor's caches: what takes 13 µs in a loop
takes 60 to 100 there. What walks is a stage of its own (stage.py), of which nobody hears. A fault in it ends the
rehearsing and nothing else. Knows neither scheduler nor step loop: it is told what a step is expected to take, and
learns how far to believe that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from kernels.waiting import Waiting
from services.target.advice import Advice

# Steps that expectations are judged by; with less than FEW of them nothing is known.
STEPS, FEW = 32, 4
# All but this part of them took longer than what is believed. If the usual one took so many times that, nobody knows
# when a step ends.
SHORT_ONES = 0.125
UNSTEADY = 1.25
# Steps shorter than this, in seconds, leave the caches as they are, about.
SHORTEST = 0.001
# A walk begins so many times what walks take before the end, and so much for waking up, at least; what that is of a
# step at most.
LEAD, WAKING = 2.0, 1e-4
LEAD_SHARE = 0.25
# One in so many may end later than the step is expected to: after each that does, as much is added for waking up as
# is taken away after so many that don't.
ONE_IN = 100
# Seconds that a walk takes, before one was measured; and how many the measure rests on.
FIRST_WALK, WALKS = 2e-4, 8
# What is left of that after a step for which walks take too long.
FADING = 0.99
# Slept at once, in seconds: by so much a step may be shorter than expected before that costs more.
NAP = 0.001


class Stage(Protocol):
    """The scenery of services/target/stage.py."""

    def prepare(self) -> None:
        """Whatever is done while a step runs: afterwards there is nothing left but to walk."""
        ...

    def walk(self) -> None:
        """From a step's verdicts to the beginning of the next."""
        ...


class Rehearsal:
    def __init__(
        self,
        make_stage: Callable[[bool], Stage],
        look: Callable[[], None],
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """`make_stage` is told whether there are drafts on it; it is called when the first step is long enough. `look`
        is for what the next step will be about: it may be looked at once more, and stays as it is."""
        self._make_stage = make_stage
        self._look = look
        self._now = now
        self._sleep = sleep
        self._stages: dict[bool, Stage] = {}
        self._act = Advice(self._stages.clear, "rehearsing failed: steps go on without it")
        # Of the last steps, what they took of what was expected.
        self._shares: deque[float] = deque(maxlen=STEPS)
        self._predicted = 0.0
        self._end = 0.0
        self._drafts = False
        self._takes, self._waking = FIRST_WALK, WAKING
        self.walks = 0

    def prepare(self, began: float, predicted: float, drafts: bool) -> Waiting | None:
        """A step runs elsewhere, `predicted` to take so long (0: nobody knows), and nothing else is to be done. What to
        do before its end, if that is to be known."""
        self._predicted = predicted
        least = self._least()
        if self._act.failed or least < SHORTEST:
            return None
        if self._lead > LEAD_SHARE * least:
            # Not for ever: the machine may have been busy.
            self._takes *= FADING
            self._waking = max(WAKING, self._waking * FADING)
            return None
        self._end, self._drafts = began + least, drafts
        return self._wait

    def learn(self, seconds: float) -> None:
        """What the step took that was prepared for last."""
        if self._predicted > 0.0:
            self._shares.append(seconds / self._predicted)
            self._predicted = 0.0

    def _least(self) -> float:
        """What the step takes at least, as far as one can tell, in seconds; 0: nobody knows."""
        shares = sorted(self._shares)
        if len(shares) < FEW:
            return 0.0
        least = shares[int(SHORT_ONES * len(shares))]
        return least * self._predicted if shares[len(shares) // 2] <= UNSTEADY * least else 0.0

    @property
    def _lead(self) -> float:
        return LEAD * self._takes + self._waking

    def _wait(self, done: Callable[[], bool]) -> None:
        """All of the step is on its way, and its end is waited for by others, afterwards."""
        begin = self._end - self._lead
        # It took too long until it was.
        if self._now() >= begin:
            return
        self._act(self._prepare)
        while (left := begin - self._now()) > 0.0:
            if done():
                return
            self._sleep(min(left, NAP))
        # Woken too late: the end isn't kept waiting.
        if not done() and self._now() + self._takes <= self._end:
            self._act(self._walk)
        late = self._now() > self._end
        self._waking = max(WAKING, self._waking + (WAKING if late else -WAKING / ONE_IN))

    def _prepare(self) -> None:
        if self._drafts not in self._stages:
            self._stages[self._drafts] = self._make_stage(self._drafts)
        self._stages[self._drafts].prepare()

    def _walk(self) -> None:
        began = self._now()
        self._stages[self._drafts].walk()
        self._look()
        self.walks += 1
        # One that was interrupted says little.
        self._takes += (min(self._now() - began, 2.0 * self._takes) - self._takes) / WALKS
