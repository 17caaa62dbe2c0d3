"""The benefit of asking for a draft, measured from past answers.

Of a proposer's drafts, in seconds (Benefit):

Most answers save nothing, and a few save the time of many steps, so a few useless answers don't show that asking
doesn't pay. The decision therefore uses the upper bound of the mean's confidence interval, from deviations above the
mean only: large losses must not raise the bound. If every answer saves nothing, the variance is 0 and the bound falls
to 0.
"""

from __future__ import annotations

from math import sqrt

# Window of the mean, in answers; and the standard errors between mean and upper bound.
WINDOW = 16
STANDARD_ERRORS = 2.0


class Benefit:
    __slots__ = ("_mean", "_variance", "upper")

    def __init__(self, like: Benefit | None = None) -> None:
        self._mean: float | None = None if like is None else like._mean
        self._variance: float = 0.0 if like is None else like._variance
        # Seconds; None: not known yet.
        self.upper: float | None = None if like is None else like.upper

    def learn(self, seconds: float) -> None:
        if self._mean is None:
            self._mean, self._variance = seconds, max(0.0, seconds) ** 2
        else:
            off = seconds - self._mean
            self._mean += off / WINDOW
            self._variance = (1.0 - 1.0 / WINDOW) * (self._variance + max(0.0, off) ** 2 / WINDOW)
        self.upper = self._mean + STANDARD_ERRORS * sqrt(self._variance / WINDOW)


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
