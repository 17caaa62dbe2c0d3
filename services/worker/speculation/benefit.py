"""The benefit of asking for a draft, in seconds, measured from past answers.

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
