"""The draft lengths of a step: the number of rows with the most expected tokens per second. Pure functions.

A row brings the probability that its token and all before it are accepted; it costs the time it adds to the step. All
drafts of a batch compete for the same rows, the most probable tokens first.

    tokens(k) = certain tokens + the k largest probabilities        seconds(k) = a step with k rows more
    k = where tokens(k) / seconds(k) is greatest

Rows are computed in blocks, so costs rise unevenly: all k are tried, not only up to the first that doesn't pay.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, chain
from operator import mul, neg, truediv

# Draft only if that raises the expected tokens per second by this factor: the estimates are not exact.
WORTH_IT = 1.01


def cumulated(chances: list[float]) -> list[float]:
    """The probability of each token that it and all before it are accepted."""
    return list(accumulate(chances, mul))


def lengths(values: list[list[float]], certain: float, seconds: list[float]) -> list[int]:
    """How many tokens of each draft to verify. `values`: cumulated probabilities, falling; `certain`: tokens that the
    step gives without drafts; seconds[k]: its time with k more rows, up to the most allowed."""
    best = sorted(chain.from_iterable(values), reverse=True) if len(values) > 1 else values[0] if values else []
    most = min(len(best), len(seconds) - 1)
    if most <= 0 or seconds[0] <= 0:
        return [0] * len(values)
    tokens = accumulate(best[:most], initial=certain)
    rates = list(map(truediv, tokens, seconds))
    rows = rates.index(max(rates))
    if rates[rows] < rates[0] * WORTH_IT:
        rows = 0
    if len(values) == 1:
        return [rows]
    if rows == len(best):
        return list(map(len, values))
    return _shares(values, rows, best[rows - 1] if rows else 2.0)


def _shares(values: list[list[float]], rows: int, least: float) -> list[int]:
    """How many of the best `rows` belong to each draft; `least` is the worst of them. Ties go to the first in order."""
    shares = [bisect_right(each, -least, key=neg) for each in values]
    surplus = sum(shares) - rows
    for index in range(len(values) - 1, -1, -1):
        if surplus <= 0:
            break
        equal = shares[index] - bisect_right(values[index], -least * (1 + 1e-12), key=neg) if shares[index] else 0
        taken = min(surplus, equal)
        shares[index] -= taken
        surplus -= taken
    return shares


def modest(lefts: list[int], rows: int) -> list[int]:
    """Share too few rows equally; the first in order get the remainder."""
    shares = [0] * len(lefts)
    while rows > 0 and (wanting := [index for index, left in enumerate(lefts) if shares[index] < left]):
        part = max(1, rows // len(wanting))
        for index in wanting[:rows]:
            more = min(part, lefts[index] - shares[index], rows)
            shares[index] += more
            rows -= more
    return shares
