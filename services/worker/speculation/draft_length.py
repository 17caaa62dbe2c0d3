"""How long the drafts of a step are to be: as many rows as bring the most tokens per second. Pure functions.

A row more is worth the chance that its token stands, and that all before it do; it costs what a step with a row more
takes longer. All drafts of a batch compete for the same rows: the likeliest tokens first, whoever's they are.

    tokens(k) = those that come anyway + the k best chances        seconds(k) = a step with k rows more
    k = where tokens(k) / seconds(k) is greatest

Steps needn't get dearer evenly (rows are computed in blocks), so all k are looked at, not only up to the first that
doesn't pay.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, chain
from operator import mul, neg, truediv

# What guessing must promise to bring, of the tokens per second without: figures are never exact.
WORTH_IT = 1.01


def cumulated(chances: list[float]) -> list[float]:
    """The chance of each token that it and all before it stand."""
    return list(accumulate(chances, mul))


def lengths(values: list[list[float]], certain: float, seconds: list[float]) -> list[int]:
    """Of each draft, how many tokens are to be verified. `values`: cumulated chances, falling; `certain`: tokens that
    the step brings anyway; seconds[k]: what it takes with k rows more, as far as there may be more."""
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
    return _shares(values, rows, best[rows - 1] if rows else 2.0)


def _shares(values: list[list[float]], rows: int, least: float) -> list[int]:
    """How many of the best `rows` are whose; `least` is the worst of them. Of equal ones, the first in order's."""
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
    """So few rows that nobody gets what it wants: equal parts, the first in order get what is left over."""
    shares = [0] * len(lefts)
    while rows > 0 and (wanting := [index for index, left in enumerate(lefts) if shares[index] < left]):
        part = max(1, rows // len(wanting))
        for index in wanting[:rows]:
            more = min(part, lefts[index] - shares[index], rows)
            shares[index] += more
            rows -= more
    return shares
