"""How many tokens of a draft pay: those whose chance of acceptance is worth the time that their row adds to a step.

Both are measured at this engine. Chances: how often tokens of one source and confidence were accepted, which the next
call's tokens show. Time: how a step's seconds rise with the drafted tokens, from the steps in which nothing else
happened. A token pays if  chance > seconds of its row · tokens a second.

Pure: knows no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Upper bounds of the buckets of confidence; fine near 1, because long drafts consist of such tokens.
BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.97, 0.985, 0.995)
_BOUNDS = np.array(BUCKETS)
_MIDDLES = [(low + high) / 2 for low, high in zip((0.0, *BUCKETS), (*BUCKETS, 1.0), strict=True)]
# Window of a rate, and the weight of the confidence as a prior, in tokens.
WINDOW, PRIOR_TOKENS = 32, 2.0
# KEPT[n]: the factor by which a count decays over n tokens.
KEPT = [(1.0 - 1.0 / WINDOW) ** count for count in range(WINDOW + 1)]
# Tokens that are counted at once.
AT_ONCE = 32
# Of sources: names come from the proposer.
MOST_SOURCES = 64
# What a confidence is that isn't given.
UNKNOWN = 0.5
# Bounds of the least chance that pays, and what it is before anything was measured.
LEAST, MOST, FIRST = 0.03, 0.7, 0.1
# Steps that the cost of a row is measured over, and the least of them.
COST_WINDOW, COST_STEPS = 64, 12
RATE_WINDOW = 32


class Acceptance:
    """A cell for each source and bucket of confidence: decayed counts, and the chance that they tell."""

    def __init__(self) -> None:
        cells = (MOST_SOURCES + 1) * len(_MIDDLES)
        self._seen, self._accepted = [0.0] * cells, [0.0] * cells
        self._values = _MIDDLES * (MOST_SOURCES + 1)
        # What has been seen since they were last told: to count each token would take longer.
        self._new, self._new_accepted = [0] * cells, [0] * cells
        self._touched: set[int] = set()
        self._waiting = 0
        # By source: the first of its cells. The last ones are of those that there is no more room for.
        self._firsts: dict[str, int] = {}

    def cells(self, sources: Sequence[str], counts: Sequence[int], chances: bytes) -> list[int]:
        """Of the tokens of some drafts. `chances` (float64): each one's chance of acceptance if all before it are
        accepted; -1: not given."""
        given = np.frombuffer(chances, np.float64)
        if len(given) and not given.min() >= 0:
            given = np.where(given >= 0, given, UNKNOWN)
        buckets = np.searchsorted(_BOUNDS, given, "right")
        firsts = [self._first(source) for source in sources]
        found: list[int] = (buckets + np.repeat(np.array(firsts, np.intp), counts)).tolist()
        return found

    def _first(self, source: str) -> int:
        found = self._firsts.get(source)
        if found is None:
            found = len(self._firsts) * len(_MIDDLES)
            if len(self._firsts) < MOST_SOURCES:
                self._firsts[source] = found
        return found

    def learn(self, cells: Sequence[int], right: int) -> None:
        """Of tokens behind each other the first `right` were accepted, and the others not."""
        for cell in cells:
            self._new[cell] += 1
        for cell in cells[:right]:
            self._new_accepted[cell] += 1
        self._touched.update(cells)
        self._waiting += len(cells)
        if self._waiting >= AT_ONCE:
            for cell in self._touched:
                self._count(cell, self._new[cell], self._new_accepted[cell])
                self._new[cell] = self._new_accepted[cell] = 0
            self._touched.clear()
            self._waiting = 0

    def _count(self, cell: int, seen: int, right: int) -> None:
        keep = KEPT[min(seen, WINDOW)]
        total = self._seen[cell] = self._seen[cell] * keep + seen
        accepted = self._accepted[cell] = self._accepted[cell] * keep + right
        prior = PRIOR_TOKENS * _MIDDLES[cell % len(_MIDDLES)]
        self._values[cell] = (accepted + prior) / (total + PRIOR_TOKENS)

    def length(self, cells: Sequence[int], least: float) -> int:
        """How many have a chance of `least` that they and all before them are accepted."""
        chance, values, count = 1.0, self._values, 0
        for cell in cells:
            chance *= values[cell]
            if chance < least:
                break
            count += 1
        return count


class RowCost:
    """`rate`: tokens a second. `least`: the chance below which a drafted token costs more than it brings."""

    def __init__(self) -> None:
        self.rate = 0.0
        # Of batches of about one size (up to twice as many requests): decayed sums over rows and seconds, and the cost
        # that they told last.
        self._sums: dict[int, list[float]] = {}
        self._costs: dict[int, float] = {}

    def learn(self, requests: int, drafted: int, tokens: int, seconds: float) -> None:
        """A step of these requests, in which nothing began and no prompt was computed."""
        if seconds <= 0:
            return
        now = tokens / seconds
        self.rate += (now - self.rate) / (RATE_WINDOW if self.rate else 1)
        size, rows = requests.bit_length(), requests + drafted
        sums = self._sums.setdefault(size, [0.0] * 6)
        keep = 1.0 - 1.0 / COST_WINDOW
        for index, more in enumerate((1.0, rows, seconds, rows * rows, rows * seconds)):
            sums[index] = sums[index] * keep + more
        sums[5] += 1
        count, rows_seen, seconds_seen, squares, products, steps = sums
        spread = squares - rows_seen * rows_seen / count
        # Steps that all have one number of rows don't tell.
        if steps >= COST_STEPS and spread > count / 4:
            self._costs[size] = max(0.0, (products - rows_seen * seconds_seen / count) / spread)

    def of_a_row(self, requests: int) -> float | None:
        """Seconds; None: not known."""
        return self._costs.get(requests.bit_length())

    def least(self, requests: int) -> float:
        cost = self.of_a_row(requests)
        return FIRST if cost is None else min(MOST, max(LEAST, cost * self.rate))


class Waiting:
    """Whether a step gains by waiting for an answer: tokens accepted from such answers against the tokens that the
    engine makes meanwhile. Where it doesn't, one step in PROBE waits all the same, so that a change is seen."""

    WINDOW, PROBE = 32, 16

    def __init__(self) -> None:
        self.seconds = 0.0
        # Before the first answers it is assumed to.
        self.gain = 1.0
        self._skipped = 0

    def pays(self, rate: float) -> bool:
        if self.gain >= rate * self.seconds:
            return True
        self._skipped = (self._skipped + 1) % self.PROBE
        return self._skipped == 0

    def learn(self, seconds: float, accepted: int) -> None:
        """The figures of a step that waited."""
        self.seconds += (seconds - self.seconds) / (self.WINDOW if self.seconds else 1)
        self.gain += (accepted - self.gain) / self.WINDOW
