"""Whether looking for drafts pays at all, by the time between steps: it holds what the time of a step doesn't, the look
itself, requests and answers, and a launch that waits for them. On a GPU this may be as long as the step.

    steps    rest rest rest   look look … look look   rest rest rest rest rest rest   look …
                              └─ first ─┘ └ window ┘
             seconds of one        tokens of the window, at that price, less its time

Where windows have lost, all in all, a rest follows, twice as long each time, up to a bound. What they won is forgotten
slowly: texts repeat themselves in some places only. Knows no drafts.
"""

from __future__ import annotations

from math import log2

# Steps that look before those that are judged: the first ones only ask. Then steps that are judged together.
FIRST, WINDOW = 8, 16
# Seconds of the first rest; how often it doubles; steps of a rest that only measures; and for how long that holds.
REST, DOUBLED, MEASURED, HOLDS = 0.03, 6, 8, 4.0
# Measured steps that the mean is of; one counts as no more than this multiple of it.
MEAN_OF, OUTLIER = 32, 4.0
# The share of what was won that counts a window later.
KEPT = 15 / 16
# Classes of numbers of sequences in a doubling.
CLASSES = 3


class _Known:
    """Of a class. `seconds` between two steps without drafts, the mean of `steps`, the last of them at `at`; what steps
    that look have saved; and how often in turn they lost."""

    __slots__ = ("at", "lost", "saved", "seconds", "steps")

    def __init__(self) -> None:
        self.seconds, self.steps, self.at = 0.0, 0, 0.0
        self.saved, self.lost = 0.0, 0

    def learn(self, seconds: float, now: float) -> None:
        if not self.steps or now - self.at > HOLDS:
            self.seconds, self.steps = seconds, 0
        self.steps, self.at = min(self.steps + 1, MEAN_OF), now
        self.seconds += (min(seconds, OUTLIER * self.seconds) - self.seconds) / self.steps


class Comparison:
    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._at: float | None = None
        # The class of the last step; steps that looked since a rest that was told here, and whether something is not
        # known of those that are judged.
        self._last = _Known()
        self._looked, self._unknown = 0, False

    def pause(self) -> None:
        """There is no step."""
        self._at = None

    def passed(self, now: float, sequences: int, tokens: int, *, rested: bool, prompts: bool) -> None:
        """Another step was launched. What the one before brought, whether it had no look, and whether prompts."""
        before, self._at = self._at, now
        if before is None or prompts:
            return
        seconds = now - before
        known = self._last = self._known.setdefault(round(CLASSES * log2(sequences)), _Known())
        if rested:
            known.learn(seconds, now)
            return
        self._looked += 1
        if self._looked <= FIRST:
            return
        if not known.steps or now - known.at > HOLDS:
            self._unknown = True
        else:
            known.saved += known.seconds * tokens / sequences - seconds

    def rest(self) -> int:
        """Steps that shouldn't look now; 0: go on."""
        if self._looked < FIRST + WINDOW:
            return 0
        unknown, self._unknown, self._looked, known = self._unknown, False, FIRST, self._last
        if unknown:
            return MEASURED
        if known.saved >= 0.0:
            known.saved *= KEPT
            known.lost = 0
            return 0
        steps = int(REST * 2**known.lost / max(known.seconds, 1e-4))
        self._looked, known.saved, known.lost = 0, 0.0, min(known.lost + 1, DOUBLED)
        return max(MEASURED, steps)
