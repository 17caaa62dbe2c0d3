"""Service level objectives: latency limits, per request for goodput and by percentile for a whole run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from loadtest.outcome import Outcome
from loadtest.token_times import gaps, per_token

Objectives = Mapping[str, float]  # metric -> seconds

PRESETS: dict[str, dict[str, float]] = {
    "chat": {"ttft": 0.5, "tpot": 0.05},
    "voice": {"ttft": 0.3, "itl": 0.1},
    "completion": {"ttft": 0.2, "e2e": 1.0},
    "agent": {"ttft": 1.0, "tpot": 0.03},
    "batch": {"e2e": 60.0},
}
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_SECONDS = re.compile(r"([0-9.]+)(s|ms|us|)")


def objectives(text: str) -> Objectives:
    """`ttft:0.5,itl:50ms`, or the name of a preset."""
    if text in PRESETS:
        return PRESETS[text]
    found = {}
    for part in text.split(","):
        name, _, limit = part.strip().partition(":")
        if name not in _OF_A_REQUEST:
            known = ", ".join(_OF_A_REQUEST)
            raise ValueError(f"{part!r} is no limit like ttft:0.5 (of {known}), and no preset ({', '.join(PRESETS)})")
        found[name] = seconds(limit)
    return found


def seconds(text: str) -> float:
    match = _SECONDS.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no time like 0.5, 0.5s or 500ms")
    return float(match[1]) * UNITS[match[2]]


def is_good(outcome: Outcome, limits: Objectives) -> bool:
    """The request succeeded within all limits. A latency that it doesn't have (a second token) meets its limit."""
    if not outcome.ok:
        return False
    seen = ((_OF_A_REQUEST[name](outcome), limit) for name, limit in limits.items())
    return all(value is None or value <= limit for value, limit in seen)


def _ttft(outcome: Outcome) -> float | None:
    return None if outcome.first is None else outcome.first - outcome.scheduled


def _itl(outcome: Outcome) -> float | None:
    """The 99th percentile within the request."""
    between = gaps(outcome)
    return float(np.percentile(between, 99, method="inverted_cdf")) if len(between) else None


def _e2e(outcome: Outcome) -> float | None:
    return outcome.ended - outcome.scheduled


_OF_A_REQUEST: dict[str, Callable[[Outcome], float | None]] = {
    "ttft": _ttft,
    "itl": _itl,
    "tpot": per_token,
    "e2e": _e2e,
}
