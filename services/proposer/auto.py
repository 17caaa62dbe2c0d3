"""All sources together, token by token: each source predicts the next token, the one with the highest acceptance rate
gives it, and all go on behind it.

    own text      x y . .          x .8, behind it y .4
    namespace     x z w .          x .6, behind it z .7, behind that w .9      the draft   x z w
    last place    x y u v          x .7, behind it y .5; then it is left

Every source is compared with the text that followed, also if another one gave the token, so a source that improves is
used again. The draft continues until acceptance is very unlikely; the worker, which knows the cost of verification,
decides how much of it is verified. Drafters outside the index are asked too; the draft with more expected tokens wins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from services.api.drafter import Draft, Drafter, DraftRequest
from services.api.methods import METHODS
from services.api.settings import Settings
from services.proposer.hybrid import expected_tokens
from services.proposer.index import SuffixIndex
from services.proposer.ngram import most_recent
from services.proposer.plain.blending import AutomatonSource, Line, Record, blend, compare
from services.proposer.plain.guess import DraftRule, Guess
from services.proposer.plain.rates import CORPUS, NGRAM, OWN, PREDICTION, SHARED, SOURCES, STORE
from services.proposer.plain.segment_search import search
from services.proposer.plain.texts import Followed
from services.proposer.prediction import predicted
from services.proposer.segments.segment import Segment
from services.proposer.text_drafter import TextDrafter

# Rates decide how long a draft is; this bounds how many contexts segments look at.
_IN_SEGMENTS = 4.0


class AutoDrafter(TextDrafter):
    name: ClassVar[str] = "auto"
    sources: ClassVar[tuple[str, ...]] = SOURCES
    is_blended: ClassVar[bool] = True
    # Drafting is cheap, and the worker decides what to verify: draft all but very improbable tokens.
    rule: DraftRule = DraftRule(least=0.02)
    _others: Sequence[Drafter] = ()

    @classmethod
    def of(cls, settings: Settings, index: SuffixIndex, others: Mapping[str, Drafter]) -> Drafter:
        made = cls(index)
        made._others = [
            each for name, each in others.items() if not isinstance(each, TextDrafter) and METHODS[name].in_auto
        ]
        return made

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        drafts = super().draft(requests)
        for other in self._others:
            pairs = zip(drafts, other.draft(requests), strict=True)
            drafts = [max(pair, key=expected_tokens) for pair in pairs]
        return drafts

    def compare(self, followed: Followed) -> None:
        compare(self._records(followed), followed.text.tokens, followed.rates)

    def guess(self, followed: Followed, ahead: Sequence[int], longest: int) -> Guess:
        sources = list(self._sources(followed, ahead, longest))
        record = Record(len(followed.text.tokens), list(ahead))
        guess = blend(sources, followed, record, longest, self.rule.least)
        records = self._records(followed)
        if not any(record.is_of_the_place_of(other) for other in records):
            records.append(record)
        return guess

    def _records(self, followed: Followed) -> deque[Record]:
        """Of the last draft, and of the one before, behind which it may have been made."""
        records: deque[Record] = followed.kept.setdefault(self.name, deque(maxlen=2))
        return records

    def _sources(self, followed: Followed, ahead: Sequence[int], longest: int) -> Iterator[AutomatonSource | Line]:
        yield AutomatonSource(OWN, followed.own(ahead), at_end=not ahead)
        if (reader := followed.shared()) is not None:
            wrote = followed.learner is not None and followed.learner.automaton is reader.automaton
            at_end = wrote and followed.learned == len(followed.text.tokens) and not ahead
            yield AutomatonSource(SHARED, reader.behind(ahead), at_end)
        of_store = [(STORE, segment) for segment in followed.segments()]
        of_corpora = [(f"{CORPUS}:{name}", segment) for name, segment in followed.corpora()]
        for kind, segments in ((STORE, of_store), (CORPUS, of_corpora)):
            found = [self._in_segment(kind, source, segment, followed, ahead, longest) for source, segment in segments]
            scores = [followed.rates.expected(line.cells, self.rule.least) for line in found]
            if max(scores, default=0.0) > 0:
                yield found[scores.index(max(scores))]
        tokens, cells, matched = predicted(followed, ahead, longest)
        if tokens:
            yield Line(PREDICTION, tokens, cells, matched)
        recent = most_recent(followed, ahead, longest, calibrated=True)
        if recent.tokens:
            yield Line.of(NGRAM, NGRAM, recent)

    def _in_segment(
        self, kind: str, source: str, segment: Segment, followed: Followed, ahead: Sequence[int], longest: int
    ) -> Line:
        rule = DraftRule(_IN_SEGMENTS, 0.0, self.rule.least)
        return Line.of(kind, source, search(segment, followed.context(ahead), longest, rule))
