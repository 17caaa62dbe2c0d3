"""How many tokens of a draft pay: those whose chance of acceptance is worth the time that their row adds to a step.

Both are measured at this engine. Chances: how often tokens of one source and confidence were accepted, which the next
call's tokens show. Time: how a step's seconds rise with the drafted tokens, from the steps in which nothing else
happened. A token pays if  chance > seconds of its row · tokens a second.

Pure: knows no clock.
"""

from __future__ import annotations

from bisect import bisect_right

from specmesh.vllm.continuation import Guesses, Outcome

# Upper bounds of the buckets of confidence; fine near 1, because long drafts consist of such tokens.
BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.97, 0.985, 0.995)
_MIDDLES = [(low + high) / 2 for low, high in zip((0.0, *BUCKETS), (*BUCKETS, 1.0), strict=True)]
# Window of a rate, and the weight of the confidence as a prior, in tokens.
WINDOW, PRIOR_TOKENS = 32, 2.0
# KEPT[n]: the factor by which a count decays over n tokens.
KEPT = [(1.0 - 1.0 / WINDOW) ** count for count in range(WINDOW + 1)]
# Of sources: names come from the proposer.
MOST_SOURCES = 64
# What a confidence is that isn't given.
UNKNOWN = 0.5
# Bounds of the least chance that pays, and what it is before anything was measured.
LEAST, MOST, FIRST = 0.03, 0.7, 0.1
# Steps that the cost of a row is measured over, and the least of them.
COST_WINDOW, COST_STEPS = 64, 12
RATE_WINDOW = 32


class _Rates:
    """Of one source, by bucket: decayed counts, and what they say."""

    __slots__ = ("accepted", "seen", "values")

    def __init__(self) -> None:
        self.seen, self.accepted = [0.0] * len(_MIDDLES), [0.0] * len(_MIDDLES)
        self.values = list(_MIDDLES)

    def learn(self, bucket: int, right: int, wrong: int) -> None:
        keep = KEPT[min(right + wrong, WINDOW)]
        self.seen[bucket] = self.seen[bucket] * keep + right + wrong
        self.accepted[bucket] = self.accepted[bucket] * keep + right
        prior = PRIOR_TOKENS * _MIDDLES[bucket]
        self.values[bucket] = (self.accepted[bucket] + prior) / (self.seen[bucket] + PRIOR_TOKENS)


class Acceptance:
    def __init__(self) -> None:
        self._sources: dict[str, _Rates] = {}
        # Of those that there is no more room for.
        self._others = _Rates()

    def _of(self, source: str) -> _Rates:
        found = self._sources.get(source)
        if found is None:
            if len(self._sources) >= MOST_SOURCES:
                return self._others
            found = self._sources[source] = _Rates()
        return found

    def learn(self, outcome: Outcome) -> None:
        """Tokens of one bucket behind each other are counted together: most are."""
        guesses, right = outcome.guesses, outcome.right
        count = right + outcome.wrong
        buckets = [bisect_right(BUCKETS, chance if chance >= 0 else UNKNOWN) for chance in guesses.chances[:count]]
        begin = 0
        while begin < count:
            bucket, source = buckets[begin], guesses.sources[begin]
            end = begin + 1
            while end < count and buckets[end] == bucket and guesses.sources[end] == source:
                end += 1
            in_run = min(right, end) - begin
            self._of(source).learn(bucket, in_run, end - begin - in_run)
            begin = end

    def length(self, guesses: Guesses, most: int, least: float) -> int:
        """How many of the first `most` have a chance of `least` that they and all before them are accepted."""
        chance, source, values = 1.0, None, _MIDDLES
        most = min(most, len(guesses.tokens))
        for count in range(most):
            if guesses.sources[count] != source:
                source = guesses.sources[count]
                values = self._of(source).values
            given = guesses.chances[count]
            chance *= values[bisect_right(BUCKETS, given if given >= 0 else UNKNOWN)]
            if chance < least:
                return count
        return most


class RowCost:
    """`rate`: tokens a second. `least`: the chance below which a drafted token costs more than it brings."""

    def __init__(self) -> None:
        self.rate = 0.0
        # By number of requests: decayed sums over drafted tokens and seconds.
        self._sums: dict[int, list[float]] = {}

    def learn(self, requests: int, drafted: int, tokens: int, seconds: float) -> None:
        """A step of these requests, in which nothing began and no prompt was computed."""
        if seconds <= 0:
            return
        now = tokens / seconds
        self.rate += (now - self.rate) / (RATE_WINDOW if self.rate else 1)
        sums = self._sums.setdefault(requests, [0.0] * 6)
        keep = 1.0 - 1.0 / COST_WINDOW
        for index, more in enumerate((1.0, drafted, seconds, drafted * drafted, drafted * seconds)):
            sums[index] = sums[index] * keep + more
        sums[5] += 1

    def of_a_row(self, requests: int) -> float | None:
        """Seconds; None: not known."""
        count, drafted, seconds, squares, products, steps = self._sums.get(requests, [0.0] * 6)
        if steps < COST_STEPS:
            return None
        spread = squares - drafted * drafted / count
        # Drafts that all have one length don't tell.
        return max(0.0, (products - drafted * seconds / count) / spread) if spread > count / 4 else None

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
