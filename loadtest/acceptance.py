"""Sums the draft statistics that servers send at the end of an answer (`metrics.speculative_decoding`, vLLM's shape).

"Accepted" counts draft tokens. A step that verifies five draft tokens computes six rows; rows of rejected tokens are
wasted. Knows no requests and no sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Figures = dict[str, Any]


def acceptance(said: Iterable[Mapping[str, Any] | None]) -> Figures | None:
    rows = [row for row in said if row]
    if not rows:
        return None
    drafted = sum(_number(row, "num_draft_tokens") for row in rows)
    accepted = sum(_number(row, "num_accepted_draft_tokens") for row in rows)
    steps = sum(_number(row, "num_spec_steps") for row in rows)
    return {
        "requests": len(rows),
        "steps": steps,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "accepted_per_step": accepted / steps if steps else None,
        "wasted_rows": wasted(steps, drafted, accepted),
        "by_position": by_position(rows),
    }


def wasted(steps: float, drafted: float, accepted: float) -> float | None:
    """The share of computed rows whose draft token was rejected."""
    return (drafted - accepted) / (steps + drafted) if steps + drafted else None


def by_position(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """Acceptance rate by position in the draft, over the steps whose draft reached that position."""
    reached: list[int] = []
    stood: list[int] = []
    for row in rows:
        for length, histogram in _histograms(row):
            _grow(reached, length)
            _grow(stood, length)
            for accepted, steps in enumerate(histogram):
                for place in range(length):
                    reached[place] += steps
                    stood[place] += steps * (place < accepted)
    return [each / of for each, of in zip(stood, reached, strict=True) if of]


def _histograms(row: Mapping[str, Any]) -> list[tuple[int, list[int]]]:
    """Pairs of draft length and the number of steps that accepted 0, 1, ... tokens of it."""
    told = row.get("acceptance_histogram_by_draft_length")
    if not isinstance(told, dict):
        return []
    found = []
    for length, histogram in told.items():
        counts = [int(each) for each in histogram] if isinstance(histogram, list) else []
        if str(length).isdigit() and 0 < int(length) <= 4096:
            found.append((int(length), counts))
    return found


def _grow(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))


def _number(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    return int(value) if isinstance(value, int | float) else 0
