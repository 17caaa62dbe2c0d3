"""Turns outcomes into figures. Pure: knows no sockets, no clock and no terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from loadtest.acceptance import acceptance
from loadtest.objectives import Objectives, is_good
from loadtest.outcome import Outcome
from loadtest.token_times import are_told, chunk_gaps, gaps, per_token, tokens_of

Figures = dict[str, Any]
# Number of quantiles kept of each latency, for the curves of a report.
QUANTILES = 64
ENOUGH_TO_TELL = 20


def summarise(outcomes: Sequence[Outcome], wall_seconds: float, limits: Objectives | None = None) -> Figures:
    """All figures of a run, in seconds and tokens. Latencies count from the scheduled start of a request.

    ttft       scheduled start -> first chunk with text
    itl        between tokens of one choice; the tokens of a chunk arrive together
    chunk_gap  between chunks with text of one choice
    tpot       (last - first chunk) / (tokens - 1) of a request
    e2e        scheduled start -> end
    """
    good = [outcome for outcome in outcomes if outcome.ok]
    failed = [outcome for outcome in outcomes if outcome.error]
    wall = max(wall_seconds, 1e-9)
    tokens = sum(tokens_of(outcome) for outcome in good)
    latencies = _latencies(good)
    return {
        "wall_s": wall_seconds,
        "requests": {
            "sent": len(outcomes),
            "ok": len(good),
            "failed": len(failed),
            "abandoned": sum(outcome.abandoned for outcome in outcomes),
            "error_rate": len(failed) / max(1, len(outcomes)),
        },
        "errors": dict(Counter(outcome.error for outcome in failed).most_common()),
        "error_examples": _examples(failed),
        "tokens": _tokens(good, tokens),
        "throughput": {
            "output_tokens_per_s": tokens / wall,
            "requests_per_s": len(good) / wall,
            "chunks_per_s": sum(outcome.chunks for outcome in outcomes) / wall,
        },
        **{f"{name}_s": spread_array([values]) for name, values in latencies.items()},
        "goodput": _goodput(outcomes, wall, limits) if limits else None,
        "acceptance": acceptance(outcome.speculation for outcome in good),
        "e2e_growth": growth(good),
        "start_lateness_s": spread(outcome.started - outcome.scheduled for outcome in outcomes),
        "quantiles_s": {name: quantiles(values) for name, values in latencies.items() if len(values)},
    }


def _latencies(good: Sequence[Outcome]) -> dict[str, np.ndarray[Any, Any]]:
    times = [per_token(outcome) for outcome in good]
    return {
        "ttft": np.array([each.first - each.scheduled for each in good if each.first is not None]),
        "itl": _joined([gaps(outcome) for outcome in good]),
        "chunk_gap": _joined([chunk_gaps(outcome) for outcome in good]),
        "tpot": np.array([each for each in times if each is not None]),
        "e2e": np.array([outcome.ended - outcome.scheduled for outcome in good]),
    }


def _tokens(good: Sequence[Outcome], output: int) -> Figures:
    return {
        "prompt": sum(outcome.prompt_tokens or 0 for outcome in good),
        "cached": sum(outcome.cached_tokens for outcome in good),
        "output": output,
        "per_chunk": output / max(1, sum(outcome.chunks for outcome in good)),
        # Without usage chunks are counted, which undercounts chunks with several tokens.
        "requests_without_usage": sum(outcome.completion_tokens is None for outcome in good),
        # For the others tokens are distributed by characters, so itl is an estimate if chunks hold several tokens.
        "requests_with_tokens_told": sum(are_told(outcome) for outcome in good if outcome.chunks),
    }


def _goodput(outcomes: Sequence[Outcome], wall: float, limits: Objectives) -> Figures:
    good = sum(is_good(outcome, limits) for outcome in outcomes)
    return {"limits_s": dict(limits), "requests_per_s": good / wall, "share": good / max(1, len(outcomes))}


def growth(good: Sequence[Outcome]) -> float | None:
    """The growth of request duration, in seconds per second: about 0 unless a queue grows."""
    if len(good) < ENOUGH_TO_TELL:
        return None
    start = np.array([outcome.scheduled for outcome in good])
    took = np.array([outcome.ended for outcome in good]) - start
    start -= start.mean()
    spread_of_starts = float(start @ start)
    return float(start @ took) / spread_of_starts if spread_of_starts else None


def spread(values: Iterable[float]) -> Figures | None:
    return spread_array([np.fromiter(values, dtype=np.float64)])


def spread_array(parts: Sequence[np.ndarray[Any, Any]]) -> Figures | None:
    """Mean, percentiles and maximum; None without values."""
    values = np.sort(_joined(parts))
    if not len(values):
        return None
    return {
        "mean": float(values.mean(dtype=np.float64)),
        "min": float(values[0]),
        "p50": percentile(values, 50),
        "p90": percentile(values, 90),
        "p99": percentile(values, 99),
        "max": float(values[-1]),
        "n": len(values),
    }


def percentile(ordered: np.ndarray[Any, Any], percent: float) -> float:
    """Nearest rank: always a measured value."""
    rank = math.ceil(percent / 100 * len(ordered))
    return float(ordered[max(0, rank - 1)])


def quantiles(values: np.ndarray[Any, Any]) -> list[float]:
    """Evenly spaced quantiles, from minimum to maximum."""
    ordered = np.sort(values)
    places = np.linspace(0, len(ordered) - 1, QUANTILES + 1).round().astype(int)
    return [float(f"{each:.4g}") for each in ordered[places]]


def _joined(parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.concatenate(parts) if parts else np.empty(0)


def _examples(failed: Sequence[Outcome]) -> dict[str, str]:
    examples: dict[str, str] = {}
    for outcome in failed:
        examples.setdefault(outcome.error, outcome.detail)
    return examples
