"""How often drafted tokens are accepted, measured: one decayed rate per source and confidence bucket.

A drafter gives each token a confidence. For each bucket of confidences this measures how many tokens were accepted,
given that all before them were; drafted tokens that weren't verified count too, if the text shows whether they were
right. Old counts decay, so changes of a drafter are noticed. Each namespace has its own table, so that its text doesn't
influence the drafts of another; a request without a namespace has a table of its own. What holds no caller's text is
learned from all requests together: the worker's head and the answers that come with specmesh.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Items

from services.api.names import MODEL_ANSWERS
from services.worker.speculation.benefit import Benefit, Worth
from services.worker.speculation.prepared import HEAD, Prepared

# Upper bounds of the buckets. They are fine near 1, because long drafts consist of such tokens.
BUCKETS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.97, 0.985, 0.995)
_MIDDLES = tuple((low + high) / 2 for low, high in zip((0.0, *BUCKETS), (*BUCKETS, 1.0), strict=True))
# Window of a bucket's rate, in tokens; and the weight of the drafter's confidence as a prior, in tokens.
WINDOW = 64
PRIOR_TOKENS = 2.0

MOST_NAMESPACES = 1024
# Sources of one namespace: a proposer may invent any number of names.
# What is left of the length of the longest recent draft after each shorter one; and what a step asks for: this multiple
# of it, and never less than this.
SHRINKS, MARGIN, SHORTEST_WAITED = 0.95, 1.25, 16
MOST_SOURCES = 32
OTHERS = "other"
_ANSWERS = f"corpus:{MODEL_ANSWERS}"


class Rates:
    """The rates of one source, by bucket."""

    __slots__ = ("_accepted", "_seen", "values")

    def __init__(self) -> None:
        self._seen = [0.0] * (2 * len(_MIDDLES))
        self._accepted = [0.0] * (2 * len(_MIDDLES))
        self.values = [*_MIDDLES] * 2

    def learn(self, buckets: list[int], accepted: bool) -> None:
        """Successive tokens of these buckets: all but the last were accepted, the last if `accepted`."""
        last = len(buckets) - 1
        keep = 1.0 - 1.0 / WINDOW
        for index, bucket in enumerate(buckets):
            self._seen[bucket] = self._seen[bucket] * keep + 1.0
            self._accepted[bucket] = self._accepted[bucket] * keep + (accepted or index < last)
        for bucket in set(buckets):
            prior = PRIOR_TOKENS * _MIDDLES[bucket % len(_MIDDLES)]
            self.values[bucket] = (self._accepted[bucket] + prior) / (self._seen[bucket] + PRIOR_TOKENS)


class OfAll:
    """Learned from all requests: rates of the answers that come with specmesh, and of the worker's head; and
    what its drafts are worth, also where a grammar drafts beside it."""

    __slots__ = ("answers", "rates", "worth", "worth_in_grammars")

    def __init__(self) -> None:
        self.answers = Rates()
        self.rates = Rates()
        self.worth = Worth()
        self.worth_in_grammars = Worth()


class Acceptance:
    """For one namespace: rates by source, and the benefit of asking for drafts."""

    __slots__ = ("benefit", "longest", "of_all", "sources")

    def __init__(self, of_all: OfAll) -> None:
        self.of_all = of_all
        self.sources: dict[str, Rates] = {}
        # About the length of the longest recent drafts, in tokens. It starts low: nothing is known of the source.
        self.longest = float(SHORTEST_WAITED)
        self.benefit = {"ahead": Benefit(), "waited": Benefit()}

    def drafted(self, count: int) -> None:
        """A draft of this length is verified."""
        self.longest = max(count, SHRINKS * self.longest)

    @property
    def enough(self) -> int:
        """Tokens to ask for while a step waits: each of them takes time. The rest is asked for ahead."""
        return max(SHORTEST_WAITED, int(MARGIN * self.longest) + 1)

    def chances(self, prepared: Prepared, begin: int = 0, end: int | None = None) -> list[float]:
        """By token of a draft, or of a part of it: how often it is accepted if all before it are."""
        if not prepared.sources:
            values = self._rates_of(prepared).values
            return [values[bucket] for bucket in prepared.buckets[begin:end]]
        values_of = {source: self._rates_from(source).values for source in set(prepared.sources)}
        pairs = zip(prepared.sources[begin:end], prepared.buckets[begin:end], strict=True)
        return [values_of[source][bucket] for source, bucket in pairs]

    def learn(self, prepared: Prepared, right: Items[int], wrong: Items[int]) -> None:
        """At these places of a draft tokens were right, and at these wrong, although all before them were right."""
        if right and not prepared.sources:
            self._rates_of(prepared).learn([prepared.buckets[place] for place in right], True)
            right = ()
        for places, accepted in ((right, True), (wrong, False)):
            for place in places:
                rates = self._rates_from(prepared.sources[place]) if prepared.sources else self._rates_of(prepared)
                rates.learn([prepared.buckets[place]], accepted)

    def _rates_of(self, prepared: Prepared) -> Rates:
        """Of one that wasn't merged."""
        return self.of_all.rates if prepared.way == "head" else self.rates(prepared.source)

    def _rates_from(self, source: str | None) -> Rates:
        return self.of_all.rates if source is HEAD else self.rates(source)

    def rates(self, source: str) -> Rates:
        if source == _ANSWERS:
            return self.of_all.answers
        found = self.sources.get(source)
        if found is None:
            if len(self.sources) >= MOST_SOURCES:
                source = OTHERS
            found = self.sources.setdefault(source, Rates())
        return found


class AcceptanceTable:
    def __init__(self) -> None:
        self._of_all = OfAll()
        self._namespaces: OrderedDict[str, Acceptance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._namespaces)

    def of(self, namespace: str) -> Acceptance:
        """The table of this namespace; without a namespace a new one each time, for one request."""
        if not namespace:
            return Acceptance(self._of_all)
        found = self._namespaces.get(namespace)
        if found is None:
            found = self._namespaces[namespace] = Acceptance(self._of_all)
            if len(self._namespaces) > MOST_NAMESPACES:
                self._namespaces.popitem(last=False)
        else:
            self._namespaces.move_to_end(namespace)
        return found


def buckets_of(confidence: list[float], beside: Iterable[bool] = ()) -> list[int]:
    """`beside`: in a tree, the tokens that are not the first child of their parent. They have buckets of their own,
    because they are accepted only where their earlier siblings are not."""
    found = [bisect_right(BUCKETS, each) for each in confidence]
    for place, second in enumerate(beside):
        if second:
            found[place] += len(_MIDDLES)
    return found
