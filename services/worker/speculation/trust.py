"""What a target makes of what proposers claim. It believes nothing but what it has seen.

A claim (this token stands with a chance of 0.9, if all before it do) belongs to a grade. Of each grade is counted how
many of its tokens stood, given that all before them did: in drafts that were verified, and in those that weren't but
can be compared with the text that came. Old counts fade, so nothing is believed, or disbelieved, for good.

Besides, there is a purse: guessing pays out of it what it costs, and puts into it what it brings. A small share of the
time goes into it, too. While it is empty nothing is verified and nobody waited for, so whatever a proposer does (one
that is right only as long as nobody looks, say) costs no more than that share, and what it has brought.

All of it belongs to a namespace: nothing that one namespace's text did is seen in the drafts of another. Requests
without a namespace have each their own. Knows no sequences, no steps and no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from math import sqrt

from services.worker.speculation.lease import LONGEST_LEASE

# Claims up to each of these are of one grade; those of certainty are kept apart finely: long drafts are made of them.
GRADES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.97, 0.985, 0.995)
_MIDDLES = tuple((low + high) / 2 for low, high in zip((0.0, *GRADES), (*GRADES, 1.0), strict=True))
# How many tokens of a grade what is believed of it rests on, and how many a claim itself weighs.
REMEMBERED = 64
CLAIM_WEIGHS = 2.0

# Of the time, what guessing may cost where it brings nothing; and what the purse can hold, in steps.
SHARE = 0.006
FIRST_STEPS = 0.5
MOST_STEPS = 16.0

MOST_NAMESPACES = 1024
# Of one namespace; the names are the proposer's, and it may invent any number of them.
MOST_SOURCES = 32
OTHERS = "other"
# Questions that what one is believed to bring rests on; and by how many standard errors more one may well bring.
ASKS = 16
HOPES = 2.0
# How long drafts are of late: what is left of that after each that is shorter.
SHRINKS = 0.95
# What a step waits for is at least so long, and so many times what drafts are of late: each token of it is weighed
# while the step waits. What follows is asked ahead.
SHORT_LEASE, MORE = 16, 1.25


class Source:
    """Of one source, by grade: what its claims are worth."""

    __slots__ = ("rates", "_seen", "_stood")  # noqa: RUF023

    def __init__(self) -> None:
        self._seen = [0.0] * (2 * len(_MIDDLES))
        self._stood = [0.0] * (2 * len(_MIDDLES))
        # Corrected chances, by grade.
        self.rates = [*_MIDDLES] * 2

    def learn(self, grades: list[int], stood: bool) -> None:
        """Tokens of these grades came to be compared; all but the last stood, and the last as said."""
        last = len(grades) - 1
        keep = 1.0 - 1.0 / REMEMBERED
        for index, grade in enumerate(grades):
            self._seen[grade] = self._seen[grade] * keep + 1.0
            self._stood[grade] = self._stood[grade] * keep + (stood or index < last)
        for grade in set(grades):
            prior = CLAIM_WEIGHS * _MIDDLES[grade % len(_MIDDLES)]
            self.rates[grade] = (self._stood[grade] + prior) / (self._seen[grade] + CLAIM_WEIGHS)


class Worth:
    """What a question brings, in seconds, learned from what became of the answers: most bring nothing, and one of ten
    the time of many steps. So after a row of fruitless ones nobody knows yet that they don't pay: `hope` is what they
    may well bring, as far as the last ones vary. Where all bring nothing there is none. None: nobody knows yet."""

    __slots__ = ("_variance", "hope", "seconds")

    def __init__(self, like: Worth | None = None) -> None:
        self.seconds: float | None = None if like is None else like.seconds
        self.hope: float | None = None if like is None else like.hope
        self._variance: float = 0.0 if like is None else like._variance

    def learn(self, seconds: float) -> None:
        if self.seconds is None:
            self.seconds, self._variance = seconds, seconds * seconds
        else:
            off = seconds - self.seconds
            self.seconds += off / ASKS
            self._variance = (1.0 - 1.0 / ASKS) * (self._variance + off * off / ASKS)
        self.hope = self.seconds + HOPES * sqrt(self._variance / ASKS)


class Record:
    """Of one namespace."""

    __slots__ = ("longest", "purse", "shared", "sources", "worth")

    def __init__(self, shared: bool) -> None:
        """`shared`: by all requests of a namespace; else it is one request's."""
        self.shared = shared
        self.sources: dict[str, Source] = {}
        # About as long as the longest drafts were of late. Nobody knows at first.
        self.longest = float(LONGEST_LEASE)
        # In seconds; None: nobody has said yet how long a step is.
        self.purse: float | None = None
        # Of questions: asked ahead, and asked between steps.
        self.worth = {"ahead": Worth(), "asked": Worth()}

    def source(self, name: str) -> Source:
        found = self.sources.get(name)
        if found is None:
            if len(self.sources) >= MOST_SOURCES:
                name = OTHERS
            found = self.sources.setdefault(name, Source())
        return found

    @property
    def solvent(self) -> bool:
        return self.purse is None or self.purse > 0.0

    @property
    def enough(self) -> int:
        """Tokens that a step may wait for."""
        return max(SHORT_LEASE, int(MORE * self.longest) + 1)

    def affords(self, seconds: float) -> bool:
        return self.purse is None or seconds <= self.purse

    def drafted(self, count: int) -> None:
        """So many tokens were verified at once."""
        self.longest = max(count, SHRINKS * self.longest)

    def time_passed(self, seconds: float, part: float) -> None:
        """A step takes so long, and this much of it is one sequence's."""
        step = seconds if self.shared else part
        self.purse = FIRST_STEPS * step if self.purse is None else min(self.purse + SHARE * part, MOST_STEPS * step)

    def account(self, seconds: float) -> None:
        """Guessing brought so much; below 0: it cost."""
        if self.purse is not None:
            self.purse += seconds


class Trust:
    def __init__(self) -> None:
        self._records: OrderedDict[str, Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def purses(self) -> list[float]:
        """Of all namespaces, in seconds; those that have none yet aren't among them."""
        return [record.purse for record in list(self._records.values()) if record.purse is not None]

    def record(self, namespace: str) -> Record:
        """The one of this namespace; without a namespace a new one each time, for one request."""
        if not namespace:
            return Record(shared=False)
        found = self._records.get(namespace)
        if found is None:
            found = self._records[namespace] = Record(shared=True)
            if len(self._records) > MOST_NAMESPACES:
                self._records.popitem(last=False)
        else:
            self._records.move_to_end(namespace)
        return found


def grades(chances: list[float], beside: Iterable[bool] = ()) -> list[int]:
    """`beside`: in a tree, those that another guess for the same place comes before. Their claims are of grades of
    their own: where both are right, the text goes the other's way."""
    found = [bisect_right(GRADES, chance) for chance in chances]
    for place, second in enumerate(beside):
        if second:
            found[place] += len(_MIDDLES)
    return found
