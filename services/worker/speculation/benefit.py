"""The benefit of asking for a draft, measured from past answers.

Of a proposer's drafts, in seconds (Benefit):

Most answers save nothing, and a few save the time of many steps, so a few useless answers don't show that asking
doesn't pay. The decision therefore uses the upper bound of the mean's confidence interval, from deviations above the
mean only: large losses must not raise the bound. If every answer saves nothing, the variance is 0 and the bound falls
to 0. One request asks for many sequences: the bound of their sum lies closer to it than the sum of their bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

# Window of the mean, in answers; and the standard errors between mean and upper bound.
WINDOW = 16
STANDARD_ERRORS = 2.0


class Benefit:
    __slots__ = ("mean", "variance")

    def __init__(self, like: Benefit | None = None) -> None:
        self.mean: float | None = None if like is None else like.mean
        self.variance: float = 0.0 if like is None else like.variance

    @property
    def upper(self) -> float | None:
        """Seconds; None: not known yet."""
        return None if self.mean is None else _bound(self.mean, self.variance)

    def learn(self, seconds: float) -> None:
        if self.mean is None:
            self.mean, self.variance = seconds, max(0.0, seconds) ** 2
        else:
            off = seconds - self.mean
            self.mean += off / WINDOW
            self.variance = (1.0 - 1.0 / WINDOW) * (self.variance + max(0.0, off) ** 2 / WINDOW)


def upper_of_all(benefits: Iterable[Benefit]) -> float | None:
    """Of asking for all of them at once, in seconds; None: of one of them nothing is known. One that is sure to lose
    counts for nothing: its drafts aren't verified."""
    mean = variance = 0.0
    for each in benefits:
        if (upper := each.upper) is None:
            return None
        if upper > 0.0 and each.mean is not None:
            mean += each.mean
            variance += each.variance
    return _bound(mean, variance)


def _bound(mean: float, variance: float) -> float:
    return mean + STANDARD_ERRORS * sqrt(variance / WINDOW)


# Windows of what the head's drafts are worth, in drafts; and how many of other requests' drafts weigh in one that
# begins.
OWN_WINDOW, WEIGHT_OF_OTHERS = 16, 8
# Drafts whose mean says something.
LEAST_DRAFTS = 8


class Worth:
    """The head's drafts: mean length, and mean number of tokens expected to be accepted by measured rates. Every
    step can have such a draft, so the mean decides; what is expected of a draft varies much less than what came of it.
    """

    __slots__ = ("_drafts", "_mean", "drafted")

    def __init__(self, like: Worth | None = None) -> None:
        self._mean: float = 0.0 if like is None else like._mean
        self.drafted: float = 0.0 if like is None else like.drafted
        self._drafts: int = 0 if like is None else min(like._drafts, WEIGHT_OF_OTHERS)

    @property
    def expected(self) -> float | None:
        """None: not known yet."""
        return self._mean if self._drafts >= LEAST_DRAFTS else None

    def learn(self, drafted: int, expected: float) -> None:
        self._drafts = min(self._drafts + 1, OWN_WINDOW)
        self._mean += (expected - self._mean) / self._drafts
        self.drafted += (drafted - self.drafted) / self._drafts
