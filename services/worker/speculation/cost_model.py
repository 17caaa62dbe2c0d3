"""The time of a step, learned from measured steps: seconds by rows and by context (the sum of the tokens that the
step's sequences attend to).

    seconds = (base(rows) + (per_token + per_row_token · rows) · context) · pace

Measurements are sorted into cells, by rows and by context. A cell is the median of its last few steps: one step that
was descheduled doesn't move it. From the cells come the two slopes (least squares within each class of rows), then
base(rows), made to rise with rows (isotonic: classes that disagree are pooled, newer ones weigh more) and linear
between classes. `pace` is the median ratio of measured to predicted time of the last steps: a machine that became
slower is slower at everything, but only some cells have measured it. Bounded: a fixed number of cells and steps. Knows
no clock and no scheduler.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from math import exp2
from statistics import median
from typing import NamedTuple

import numpy as np

# Upper bounds of the classes of steps, in rows and in tokens of context.
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 4096, 65536)
CONTEXT = (64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576)
KEPT = 9  # steps a cell is the median of
REFIT = 16  # steps between two fits; the first fits come sooner
PACE = 15  # steps the pace is the median of
# Steps after which a cell's weight halves.
HALF_LIFE = 100


class _Cell:
    __slots__ = ("context", "at", "rows", "seconds", "steps")  # noqa: RUF023

    def __init__(self) -> None:
        self.steps: deque[tuple[float, int, int]] = deque(maxlen=KEPT)
        self.seconds = self.rows = self.context = 0.0
        self.at = 0

    def add(self, seconds: float, rows: int, context: int, at: int) -> None:
        self.steps.append((seconds, rows, context))
        self.seconds, self.rows, self.context = (median(values) for values in zip(*self.steps, strict=True))
        self.at = at


class _Class(NamedTuple):
    """The cells of one class of rows together, at the middle of their contexts."""

    rows: float
    seconds: float
    context: float
    weight: float
    spread: float  # Σ weight · (context - middle)²
    slope: float  # Σ weight · (context - middle) · (seconds - middle)


class _Fit(NamedTuple):
    rows: tuple[float, ...]
    base: tuple[float, ...]
    per_token: float
    per_row_token: float
    pace: float = 1.0

    def seconds(self, rows: int, context: int) -> float:
        """Below the smallest measured step, and beyond it if there is no other, each row costs the same as a row of
        that step, not nothing."""
        attended = (self.per_token + self.per_row_token * rows) * context
        return (_between(self.rows, self.base, rows) + attended) * self.pace


class StepTime:
    def __init__(self) -> None:
        self.steps = 0
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._last: deque[tuple[int, int, float]] = deque(maxlen=PACE)
        # Replaced as a whole: read from other threads.
        self._fit: _Fit | None = None
        # base(rows) of the fit, by rows, for as many as were asked for.
        self._base = np.zeros(0)

    def learn(self, rows: int, context: int, seconds: float) -> None:
        """Add a measured step."""
        self.steps += 1
        place = bisect_left(ROWS, rows), bisect_left(CONTEXT, context)
        cell = self._cells.get(place)
        if cell is None:
            cell = self._cells[place] = _Cell()
        cell.add(seconds, rows, context, self.steps)
        self._last.append((rows, context, seconds))
        # A cell's first steps change the fit most.
        if self.steps % REFIT == 0 or len(cell.steps) <= 3:
            self._fit = self._refit()
            self._base = _base_of(self._fit, len(self._base))

    def predict(self, rows: int, context: int) -> float:
        """Seconds; 0.0 as long as nothing has been measured. Never falls when rows or context rise."""
        fit = self._fit
        if fit is None:
            return 0.0
        return fit.seconds(rows, context)

    @property
    def least_rows(self) -> int:
        """The smallest measured class, in rows."""
        return int(self._fit.rows[0]) if self._fit is not None else 0

    @property
    def most_rows(self) -> int:
        """The largest measured class, in rows."""
        return int(self._fit.rows[-1]) if self._fit is not None else 0

    def curve(self, rows: int, more: int, context: int) -> list[float]:
        """What `predict` says of `rows`, of a row more, and so on up to `more`; [] as long as nothing has been
        measured."""
        fit = self._fit
        if fit is None:
            return []
        if len(self._base) <= rows + more:
            self._base = _base_of(fit, 2 * (rows + more))
        found = self._base[rows : rows + more + 1] + fit.per_token * context
        if fit.per_row_token:
            found = found + fit.per_row_token * context * np.arange(rows, rows + more + 1)
        seconds: list[float] = (found * fit.pace).tolist()
        return seconds

    # The fit --------------------------------------------------------------------------------------------

    def _refit(self) -> _Fit:
        by_rows: dict[int, list[_Cell]] = {}
        for (rows, _), cell in self._cells.items():
            by_rows.setdefault(rows, []).append(cell)
        classes = [self._class(by_rows[rows]) for rows in sorted(by_rows)]
        per_token, per_row_token = _slopes(classes)
        bases = [c.seconds - (per_token + per_row_token * c.rows) * c.context for c in classes]
        risen = _rising([max(0.0, base) for base in bases], [c.weight for c in classes])
        fit = _Fit(tuple(c.rows for c in classes), tuple(risen), per_token, per_row_token)
        ratios = [seconds / said for rows, context, seconds in self._last if (said := fit.seconds(rows, context)) > 0]
        return fit._replace(pace=median(ratios)) if ratios else fit

    def _class(self, cells: list[_Cell]) -> _Class:
        # Squared: a cell of one or two steps may be nothing but an outlier.
        weights = [len(cell.steps) ** 2 * exp2((cell.at - self.steps) / HALF_LIFE) + 1e-9 for cell in cells]
        whole = sum(weights)

        def middle(values: list[float]) -> float:
            return sum(weight * value for weight, value in zip(weights, values, strict=True)) / whole

        seconds = middle([cell.seconds for cell in cells])
        context = middle([cell.context for cell in cells])
        spread = whole * middle([(cell.context - context) ** 2 for cell in cells])
        slope = whole * middle([(cell.context - context) * (cell.seconds - seconds) for cell in cells])
        return _Class(middle([cell.rows for cell in cells]), seconds, context, whole, spread, slope)


def _base_of(fit: _Fit, count: int) -> np.ndarray:
    at = np.arange(count + 1)
    in_first = fit.base[0] * at / fit.rows[0]
    if len(fit.rows) == 1:
        return in_first
    rise = (fit.base[-1] - fit.base[-2]) / (fit.rows[-1] - fit.rows[-2])
    base = np.interp(at, fit.rows, fit.base) + rise * np.maximum(0.0, at - fit.rows[-1])
    return np.where(at < fit.rows[0], in_first, base)


def _slopes(classes: list[_Class]) -> tuple[float, float]:
    """(a, b) of seconds = … + (a + b · rows) · context, neither below 0: least squares over the classes."""
    s0 = sum(c.spread for c in classes)
    s1 = sum(c.spread * c.rows for c in classes)
    s2 = sum(c.spread * c.rows**2 for c in classes)
    t0 = sum(c.slope for c in classes)
    t1 = sum(c.slope * c.rows for c in classes)
    if s0 <= 0:
        return 0.0, 0.0
    alone = max(0.0, t0 / s0)
    det = s0 * s2 - s1 * s1
    # One class of rows doesn't determine the other slope.
    if det <= 1e-9 * s0 * s2:
        return alone, 0.0
    a, b = (t0 * s2 - t1 * s1) / det, (t1 * s0 - t0 * s1) / det
    if a >= 0 and b >= 0:
        return a, b
    return (0.0, max(0.0, t1 / s2)) if a < 0 else (alone, 0.0)


def _rising(values: list[float], weights: list[float]) -> list[float]:
    """The nearest non-decreasing values: decreasing neighbours are pooled to their mean (isotonic regression)."""
    pools: list[tuple[float, float, int]] = []  # value, weight, count
    for value, weight in zip(values, weights, strict=True):
        count = 1
        while pools and pools[-1][0] > value:
            before, its, members = pools.pop()
            value = (before * its + value * weight) / (its + weight)
            weight += its
            count += members
        pools.append((value, weight, count))
    return [value for value, _, count in pools for _ in range(count)]


def _between(at: tuple[float, ...], values: tuple[float, ...], rows: int) -> float:
    """Linear between the classes, and from 0 to the first; above the last, the slope of the last two."""
    if len(at) == 1 or rows <= at[0]:
        return values[0] * rows / at[0]
    right = min(bisect_right(at, rows), len(at) - 1)
    left = right - 1
    rise = (values[right] - values[left]) / (at[right] - at[left])
    return values[left] + rise * (rows - at[left])
