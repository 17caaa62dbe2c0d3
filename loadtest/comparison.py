"""Compares two sides of one run, request by request: the speed-up, its confidence interval, and whether texts differ.

A ratio above 1 means that the other side is faster than the first. Ratios of equal requests are averaged as logarithms.
The interval is a bootstrap over sessions, because the turns of one session are not independent. Throughput is all
tokens divided by all of the time, with a bootstrap over blocks. Knows no sockets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from loadtest.outcome import Outcome
from loadtest.token_times import per_token, tokens_of

Figures = dict[str, Any]
RESAMPLES = 2000
INTERVAL = (2.5, 97.5)
SHOWN_CHARACTERS = 60


class Block(NamedTuple):
    """A part of a run in which only one side got requests."""

    tokens: int
    seconds: float


def compare(
    first: Sequence[Outcome], other: Sequence[Outcome], blocks: tuple[Sequence[Block], Sequence[Block]], seed: int
) -> Figures:
    ours = {(each.index, each.turn): each for each in other if each.ok}
    theirs = {(each.index, each.turn): each for each in first if each.ok}
    pairs = [(theirs[at], ours[at]) for at in sorted(theirs.keys() & ours.keys())]
    return {
        "pairs": len(pairs),
        "e2e": _ratio(pairs, lambda each: each.ended - each.scheduled, seed),
        "ttft": _ratio(pairs, lambda each: None if each.first is None else each.first - each.scheduled, seed),
        "tpot": _ratio(pairs, per_token, seed),
        "throughput": _throughput(*blocks, seed),
        "texts": _texts(pairs),
    }


def _ratio(
    pairs: Sequence[tuple[Outcome, Outcome]], seconds: Callable[[Outcome], float | None], seed: int
) -> Figures | None:
    by_session: dict[int, list[float]] = {}
    for slow, fast in pairs:
        before, after = seconds(slow), seconds(fast)
        # An answer with a single chunk has no time after its first token, so it has no ratio.
        if before and after:
            by_session.setdefault(slow.index, []).append(math.log(before / after))
    if not by_session:
        return None
    logs = np.array([float(np.mean(each)) for each in by_session.values()])
    means = np.random.default_rng(seed).choice(logs, (RESAMPLES, len(logs))).mean(1)
    return _with_interval(math.exp(logs.mean()), np.exp(means), len(logs))


def _throughput(first: Sequence[Block], other: Sequence[Block], seed: int) -> Figures | None:
    """Resamples pairs of neighbouring blocks, because disturbances of the machine affect both sides of a pair."""
    both = np.array([[*a, *b] for a, b in zip(first, other, strict=False)], dtype=np.float64)
    if not len(both) or (both.sum(0) <= 0).any():
        return None

    def ratio(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        tokens, seconds, their_tokens, their_seconds = np.moveaxis(rows, -1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            speed = their_tokens.sum(-1) / their_seconds.sum(-1)
            return np.asarray(speed / (tokens.sum(-1) / seconds.sum(-1)))

    drawn = np.random.default_rng(seed).integers(0, len(both), (RESAMPLES, len(both)))
    resampled = ratio(both[drawn])
    return _with_interval(float(ratio(both)), resampled[np.isfinite(resampled)], len(both))


def _with_interval(ratio: float, resampled: np.ndarray[Any, Any], count: int) -> Figures:
    """A single pair has no interval."""
    low, high = np.percentile(resampled, INTERVAL) if count > 1 and len(resampled) else (None, None)
    return {
        "ratio": round(ratio, 4),
        "low": None if low is None else round(float(low), 4),
        "high": None if high is None else round(float(high), 4),
        "n": count,
    }


def no_clear_difference(row: Mapping[str, Any]) -> bool:
    """Whether the interval of a ratio holds 1. A single pair has none, and says nothing either way."""
    return row["low"] is not None and bool(row["low"] <= 1.0 <= row["high"])


def _texts(pairs: Sequence[tuple[Outcome, Outcome]]) -> Figures:
    differ = [(a, b) for a, b in pairs if a.texts != b.texts]
    return {
        "compared": len(pairs),
        "same": len(pairs) - len(differ),
        "differ": len(differ),
        "same_tokens": sum(tokens_of(a) == tokens_of(b) for a, b in pairs),
        "first_difference": _difference(*differ[0]) if differ else None,
    }


def _difference(first: Outcome, other: Outcome) -> Mapping[str, Any]:
    a, b = "\n".join(first.texts), "\n".join(other.texts)
    at = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return {
        "request": first.index,
        "turn": first.turn,
        "character": at,
        "first": a[at : at + SHOWN_CHARACTERS],
        "other": b[at : at + SHOWN_CHARACTERS],
    }
