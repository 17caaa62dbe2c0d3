"""Whether looking for drafts pays at all, by the time between steps: it holds what the time of a step doesn't, the look
itself, requests and answers, and a launch that waits for them. On a GPU this may be as long as the step.

    steps    rest rest rest   look look … look look   rest rest rest rest rest rest   look …
                              └─ first ─┘ └ window ┘
             seconds of one        tokens of the window, at that price, against its time

A window that lost is followed by a rest, twice as long each time, up to a bound: texts change. Knows no drafts.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

# Steps that look before those that are judged: the first ones only ask. Then steps that are judged together.
FIRST, WINDOW = 8, 16
# Seconds of the first rest; how often it doubles; steps of a rest that only measures; and for how long that holds.
REST, DOUBLED, MEASURED, HOLDS = 0.03, 4, 8, 4.0
# Measured steps that the mean is of; one counts as no more than this multiple of it.
MEAN_OF, OUTLIER = 32, 4.0
# Classes of numbers of sequences in a doubling.
CLASSES = 3


class _Plain(NamedTuple):
    seconds: float
    steps: int
    at: float


class Comparison:
    def __init__(self) -> None:
        # Between two steps without drafts, by class of sequences.
        self._plain: dict[int, _Plain] = {}
        self._at: float | None = None
        # Of those that look, one after the other; what the judged ones saved; and whether it isn't known of some.
        self._steps, self._saved, self._unknown = 0, 0.0, False
        self._step = 0.0
        self._lost = 0

    def pause(self) -> None:
        """There is no step."""
        self._at = None

    def passed(self, now: float, sequences: int, tokens: int, *, rested: bool, prompts: bool) -> None:
        """Another step was launched. What the one before brought, whether it had no look, and whether prompts."""
        before, self._at = self._at, now
        if before is None or prompts:
            return
        seconds = now - before
        if rested:
            self._learn(sequences, seconds, now)
            self._steps, self._saved, self._unknown = 0, 0.0, False
            return
        self._steps += 1
        if self._steps <= FIRST:
            return
        plain = self._plain.get(_class(sequences))
        if plain is None or now - plain.at > HOLDS:
            self._unknown = True
        else:
            self._step = plain.seconds
            self._saved += plain.seconds * tokens / sequences - seconds

    def rest(self) -> int:
        """Steps that shouldn't look now; 0: go on."""
        if self._steps < FIRST + WINDOW:
            return 0
        saved, unknown = self._saved, self._unknown
        self._steps, self._saved, self._unknown = FIRST, 0.0, False
        if unknown:
            return MEASURED
        if saved >= 0.0:
            self._lost = 0
            return 0
        steps = int(REST * 2**self._lost / max(self._step, 1e-4))
        self._lost = min(self._lost + 1, DOUBLED)
        return max(MEASURED, steps)

    def _learn(self, sequences: int, seconds: float, now: float) -> None:
        known = self._plain.get(_class(sequences))
        if known is None or now - known.at > HOLDS:
            known = _Plain(seconds, 0, now)
        steps = min(known.steps + 1, MEAN_OF)
        mean = known.seconds + (min(seconds, OUTLIER * known.seconds) - known.seconds) / steps
        self._plain[_class(sequences)] = _Plain(mean, steps, now)


def _class(sequences: int) -> int:
    return round(CLASSES * log2(sequences))
