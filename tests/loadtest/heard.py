"""An answer as the client would have heard it: chunks a second apart, the first after a second."""

from __future__ import annotations

from array import array

from loadtest.outcome import FIRST, Outcome


def heard(sizes: list[int], told: list[int] | None = None, usage: int | None = None, finish: str = "length") -> Outcome:
    outcome = Outcome(0.0, first=1.0, last=float(len(sizes)), ended=9.0, chunks=len(sizes), finish=finish)
    outcome.sizes, outcome.told = array("I", sizes), array("I", told or [0] * len(sizes))
    outcome.gaps = array("f", [FIRST] + [1.0] * (len(sizes) - 1))
    outcome.completion_tokens = usage
    return outcome
