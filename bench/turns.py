"""Ratios of two sides that take turns, and what they say of a bar. Values in, values out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Student's t, 97.5 %, by degrees of freedom; beyond the table the normal distribution's.
STUDENT_T = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13,
    2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04,
)  # fmt: skip
NORMAL = 1.96
# Seconds before a turn: vLLM's worker polls its queue for a second after an answer, and takes a core.
PAUSE = 1.5


class Ratio(NamedTuple):
    """A geometric mean with its 95 % confidence interval. `error` is the standard error of the mean's logarithm."""

    mean: float
    low: float
    high: float
    error: float
    freedom: int


def order(turn: int) -> tuple[int, int]:
    """Which side is measured first and second: old new, new old, old new, ..."""
    return (0, 1) if turn % 2 == 0 else (1, 0)


def of_pairs(ratios: Sequence[float]) -> Ratio:
    """One ratio for each pair of turns; at least two."""
    logs = [math.log(ratio) for ratio in ratios]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return _ratio(statistics.fmean(logs), error, len(logs) - 1)


def of_cells(cells: Sequence[Ratio]) -> Ratio:
    """Their mean, each cell with the same weight."""
    mean = statistics.fmean(math.log(cell.mean) for cell in cells)
    error = math.sqrt(sum(cell.error**2 for cell in cells)) / len(cells)
    return _ratio(mean, error, sum(cell.freedom for cell in cells))


def _ratio(mean: float, error: float, freedom: int) -> Ratio:
    t = STUDENT_T[freedom - 1] if freedom <= len(STUDENT_T) else NORMAL
    low, high = mean - t * error, mean + t * error
    return Ratio(math.exp(mean), math.exp(low), math.exp(high), error, freedom)


def missed(what: str, ratio: Ratio, bar: float) -> list[str]:
    """Empty where the mean reaches the bar. Certain when the whole interval lies below it."""
    if ratio.mean >= bar:
        return []
    how = "certain" if ratio.high < bar else "within noise"
    return [f"{what}: {ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f}), the bar is {bar} ({how})"]
