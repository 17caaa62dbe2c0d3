"""Walks through the code that runs between two steps, shortly before a step that runs elsewhere ends.

    the step          |─────────────────────────────────────────────|
    the step thread    settle, ask, foresee │ prepare │ (sleeps) │ walk │ walk │ walk │ (waits) ‖ the same, for real
                                                       lead: ─────────────────────────

In the milliseconds of a step whoever else is on the machine has the processor's caches: what takes 13 µs in a loop
takes 60 to 100 there. A first walk brings the code back, further ones make it run as in a loop. What walks is a stage
of its own (stage.py), of which nobody hears. Where steps wait for drafts, the proposer walks along: it is asked its
last question again (practice.py). A fault in it ends the rehearsing and nothing else. Knows neither scheduler nor step
loop: it is told what a step is expected to take, and learns how far to believe that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, Protocol

from kernels.waiting import Waiting
from services.worker.speculation.advice import Advice

# Steps that expectations are judged by; with less than FEW of them nothing is known.
STEPS, FEW = 32, 4
# All but this part of them took longer than what is believed. If the usual one took so many times that, nobody knows
# when a step ends.
SHORT_ONES = 0.125
UNSTEADY = 1.25
# Steps shorter than this, in seconds, leave the caches as they are, about.
SHORTEST = 0.001
# The first walk, and so many others, would end so much before the end (for waking up); all that is so much of a step at
# most, and nobody walks where the first one alone is more. If there is time for others, there are others: a moment
# later nothing is at hand any more, and who has slept for longer needs more of them.
AGAIN, MOST_AGAIN, WAKING = 12, 30, 1e-4
LEAD_SHARE = 0.4
# One in so many first walks may end later than the step is expected to: after each that does, as much is added for
# waking up as is taken away after so many that don't.
ONE_IN = 100
# Seconds that a walk takes, or a question alone, before one was measured; and how many the measure rests on: rather too
# long than too short.
FIRST_WALK, LONGER, SHORTER = 2e-4, 4, 16
# Looks for an answer to a question that is only rehearsed; it is there after a few of them.
MOST_LOOKS = 64
# What is left of it after a step for which walks take too long.
FADING = 0.99
# Slept at once, in seconds: by so much a step may be shorter than expected before that costs more.
NAP = 0.001


# What is played: a step without drafts; drafts that stand, and more were asked for ahead; drafts that fall, so that the
# next step waits.
Play = Literal["plain", "stands", "falls"]


class Stage(Protocol):
    """The scenery of services/worker/speculation/stage.py."""

    def prepare(self) -> None:
        """Whatever is done while a step runs: afterwards there is nothing left but to walk."""
        ...

    def walk(self) -> None:
        """From a step's verdicts to the beginning of the next."""
        ...


class Line(Protocol):
    """The proposer's (step_loop.py, `Drafts`)."""

    def expects(self) -> bool:
        """Whether the next step may well wait for a draft."""
        ...

    def rehearse(self) -> None:
        """The proposer is asked once more, for its caches' sake."""
        ...

    def rehearsed(self) -> bool:
        """Its answer is read, if it is there. Whether none is left to be read."""
        ...


class Rehearsal:
    def __init__(
        self,
        make_stage: Callable[[Play], Stage],
        look: Callable[[], None],
        line: Line,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """`make_stage` is called when the first step is long enough that could be followed so. `look` is for what the
        next step will be about: it may be looked at once more, and stays as it is."""
        self._make_stage = make_stage
        self._look = look
        self._line = line
        self._now = now
        self._sleep = sleep
        self._stages: dict[Play, Stage] = {}
        self._act = Advice(self._stages.clear, "rehearsing failed: steps go on without it")
        # Of the last steps, what they took of what was expected.
        self._shares: deque[float] = deque(maxlen=STEPS)
        self._predicted = 0.0
        self._begin = self._end = 0.0
        self._drafts = False
        self._first = self._takes = self._asks = FIRST_WALK
        self._waking = WAKING
        self._heard = False
        self.walks = 0

    def prepare(self, began: float, predicted: float, drafts: bool) -> Waiting | None:
        """A step runs elsewhere, `predicted` to take so long (0: nobody knows), and nothing else is to be done. What to
        do before its end, if that is to be known."""
        self._predicted = predicted
        least = self._least()
        if self._act.failed or least < SHORTEST:
            return None
        if self._first + self._waking > LEAD_SHARE * least:
            # Not for ever: the machine may have been busy.
            self._first *= FADING
            self._takes *= FADING
            self._asks *= FADING
            self._waking = max(WAKING, self._waking * FADING)
            return None
        self._end, self._drafts = began + least, drafts
        self._begin = self._end - min(self._first + AGAIN * self._takes + self._waking, LEAD_SHARE * least)
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

    def _wait(self, done: Callable[[], bool]) -> None:
        """All of the step is on its way, and its end is waited for by others, afterwards."""
        # It took too long until it was.
        if self._now() >= self._begin:
            return
        waits = self._drafts and bool(self._act(self._line.expects))
        play: Play = "falls" if waits else "stands" if self._drafts else "plain"
        self._act(self._prepare, play)
        if not self._sleep_until(self._begin, done):
            return
        # Woken too late: the end isn't kept waiting.
        if not done() and self._now() + self._first <= self._end:
            self._first += self._timed(self._walk(play), self._first, done)
        # To begin sooner helps against this alone; against what comes then being late, to know how long it takes.
        late = self._now() > self._end
        if not late:
            self._takes = self._again(partial(self._walk, play), self._takes, done)
            if play == "falls":
                # There is time for less than a walk.
                self._asks = self._again(self._question, self._asks, done)
        self._waking = max(WAKING, self._waking + (WAKING if late else -WAKING / ONE_IN))

    def _again(
        self, pieces: Callable[[], Iterator[Callable[[], object]]], takes: float, done: Callable[[], bool]
    ) -> float:
        """As long as there is time, if once takes so long; what is known of that then."""
        for _ in range(MOST_AGAIN):
            if done() or self._now() + takes > self._end:
                break
            takes += self._timed(pieces(), takes, done)
        return takes

    def _sleep_until(self, moment: float, done: Callable[[], bool]) -> bool:
        """False: the step has ended before."""
        while (left := moment - self._now()) > 0.0:
            if done():
                return False
            self._sleep(min(left, NAP))
        return True

    def _prepare(self, play: Play) -> None:
        if play not in self._stages:
            self._stages[play] = self._make_stage(play)
        self._stages[play].prepare()

    def _timed(self, pieces: Iterator[Callable[[], object]], expected: float, done: Callable[[], bool]) -> float:
        """What is learned of the time that they take. Not all are played when the step ends meanwhile."""
        began = self._now()
        for piece in pieces:
            self._act(piece)
            if done():
                return 0.0
        # One that was interrupted says little; one that took longer, more than one that didn't.
        more = min(self._now() - began, 2.0 * expected) - expected
        return more / (LONGER if more > 0.0 else SHORTER)

    def _walk(self, play: Play) -> Iterator[Callable[[], object]]:
        stage = self._stages.get(play)
        if stage is None:
            # A fault has ended it.
            return
        if play == "falls":
            yield self._line.rehearse
        yield stage.walk
        yield stage.prepare
        if play == "falls":
            yield self._line.rehearsed
        yield self._look
        self.walks += 1

    def _question(self) -> Iterator[Callable[[], object]]:
        """The proposer alone."""
        yield self._line.rehearse
        self._heard = False
        for _ in range(MOST_LOOKS):
            yield self._look_for_it
            if self._heard:
                break

    def _look_for_it(self) -> None:
        self._heard = self._line.rehearsed()
