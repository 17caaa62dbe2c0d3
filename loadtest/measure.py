"""From outcomes to figures. Pure: knows no sockets, no clock and no terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from loadtest.outcome import Outcome

Figures = dict[str, Any]


def summarise(outcomes: Sequence[Outcome], wall_seconds: float) -> Figures:
    """All figures of a run, in seconds and tokens. Latencies count from the scheduled start of a request.

    ttft  scheduled start -> first chunk with text      itl   between chunks with text of one choice
    e2e   scheduled start -> end                        tpot  (last - first chunk) / (tokens - 1) of a request
    """
    good = [outcome for outcome in outcomes if outcome.ok]
    failed = [outcome for outcome in outcomes if outcome.error]
    tokens = sum(tokens_of(outcome) for outcome in good)
    chunks = sum(outcome.chunks for outcome in outcomes)
    wall = max(wall_seconds, 1e-9)
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
        "tokens": {
            "prompt": sum(outcome.prompt_tokens or 0 for outcome in good),
            "cached": sum(outcome.cached_tokens for outcome in good),
            "output": tokens,
            "per_chunk": tokens / max(1, sum(outcome.chunks for outcome in good)),
            # Servers that send no usage are counted by chunks, which undercounts chunks of several tokens.
            "requests_without_usage": sum(outcome.completion_tokens is None for outcome in good),
        },
        "throughput": {
            "output_tokens_per_s": tokens / wall,
            "requests_per_s": len(good) / wall,
            "chunks_per_s": chunks / wall,
        },
        "ttft_s": spread(outcome.first - outcome.scheduled for outcome in good if outcome.first is not None),
        "itl_s": spread_array([np.asarray(outcome.gaps, dtype=np.float32) for outcome in good]),
        "tpot_s": spread(_tpot(outcome) for outcome in good if outcome.first and tokens_of(outcome) > 1),
        "e2e_s": spread(outcome.ended - outcome.scheduled for outcome in good),
        "acceptance": acceptance(good),
        "start_lateness_s": spread(outcome.started - outcome.scheduled for outcome in outcomes),
    }


def tokens_of(outcome: Outcome) -> int:
    return outcome.chunks if outcome.completion_tokens is None else outcome.completion_tokens


def spread(values: Iterable[float]) -> Figures | None:
    return spread_array([np.fromiter(values, dtype=np.float64)])


def spread_array(parts: Sequence[np.ndarray[Any, Any]]) -> Figures | None:
    """Mean, percentiles and maximum; None when there is nothing to describe."""
    values = np.concatenate(parts) if parts else np.empty(0)
    if not len(values):
        return None
    values.sort()
    return {
        "mean": float(values.mean(dtype=np.float64)),
        "p50": percentile(values, 50),
        "p90": percentile(values, 90),
        "p99": percentile(values, 99),
        "max": float(values[-1]),
        "n": len(values),
    }


def percentile(ordered: np.ndarray[Any, Any], percent: float) -> float:
    """Nearest rank: a value that was measured, never one between two."""
    rank = math.ceil(percent / 100 * len(ordered))
    return float(ordered[max(0, rank - 1)])


def acceptance(outcomes: Iterable[Outcome]) -> Figures | None:
    """Sums of what servers say of their speculation at the end; `accepted` counts draft tokens only."""
    said = [outcome.speculation for outcome in outcomes if outcome.speculation]
    if not said:
        return None
    drafted = sum(_number(row, "num_draft_tokens") for row in said)
    accepted = sum(_number(row, "num_accepted_draft_tokens") for row in said)
    steps = sum(_number(row, "num_spec_steps") for row in said)
    return {
        "requests": len(said),
        "steps": steps,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "accepted_per_step": accepted / steps if steps else None,
    }


def _number(row: Any, name: str) -> int:
    value = row.get(name) if isinstance(row, dict) else None
    return int(value) if isinstance(value, int | float) else 0


def _tpot(outcome: Outcome) -> float:
    assert outcome.first is not None and outcome.last is not None
    return (outcome.last - outcome.first) / (tokens_of(outcome) - 1)


def _examples(failed: Sequence[Outcome]) -> dict[str, str]:
    examples: dict[str, str] = {}
    for outcome in failed:
        examples.setdefault(outcome.error, outcome.detail)
    return examples
