"""Counts of drafts for the metrics, by source and by way. No decision depends on them."""

from __future__ import annotations

from collections.abc import Sequence as Items

from services.api.drafter import MAX_DRAFT_TOKENS, Draft
from services.worker.running.positions import Positions
from services.worker.running.work import Result, SequenceWork, size_of
from services.worker.speculation.acceptance import MOST_SOURCES, OTHERS
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.draft_length import cumulated
from services.worker.speculation.draft_rows import Candidate
from services.worker.speculation.prepared import Way

# Where the draft of a step came from: the rest of an earlier one, a request sent while the last step ran, a request
# that was waited for, the worker's head, or nowhere.
WAYS = ("kept", "ahead", "waited", "head", "none")


class SourceCounts:
    __slots__ = ("accepted", "accepted_at", "claimed", "drafted", "drafts", "expected")

    def __init__(self) -> None:
        self.drafts = 0
        self.drafted = 0
        self.accepted = 0
        self.accepted_at = Positions()
        # Tokens of weighed drafts expected to be accepted, by the drafter's confidence and by measured acceptance.
        self.claimed = 0.0
        self.expected = 0.0


class SpeculationCounts:
    def __init__(self) -> None:
        self.sources: dict[str, SourceCounts] = {}
        self.ways = dict.fromkeys(WAYS, 0)
        # Drafts of each length.
        self.lengths = [0] * (MAX_DRAFT_TOKENS + 1)
        self.asking_seconds: dict[Way, float] = {"ahead": 0.0, "waited": 0.0, "head": 0.0}
        # Steps that had drafts: what they took, and what their tokens would have taken without.
        self.drafted_seconds = 0.0
        self.naive_seconds = 0.0
        self.refused = 0
        self.late = 0
        self.dropped = 0

    def source(self, name: str) -> SourceCounts:
        """All corpora are one source: a caller chose their names, and everyone who reaches the port reads metrics."""
        name = name.partition(":")[0]
        found = self.sources.get(name)
        if found is None:
            # The proposer chooses the names of sources.
            name = name if len(self.sources) < MOST_SOURCES else OTHERS
            found = self.sources.setdefault(name, SourceCounts())
        return found

    def expected(self, name: str, candidate: Candidate, chosen: Items[int]) -> None:
        """These tokens of it, at least one, are to be verified."""
        source, prepared = self.source(name), candidate.prepared
        if not prepared.parents:
            source.claimed += sum(cumulated(prepared.confidence[chosen[0] : chosen[-1] + 1]))
            source.expected += sum(candidate.values[: len(chosen)])
            return
        claims = prepared.cumulated(prepared.confidence)
        values = dict(zip(candidate.places, candidate.values, strict=True))
        source.claimed += sum(claims[place] for place in chosen)
        source.expected += sum(values.get(place, 0.0) for place in chosen)

    def verified(self, draft: Draft, accepted: int) -> None:
        drafted = len(draft.tokens)
        self.lengths[min(drafted, MAX_DRAFT_TOKENS)] += 1
        source = self.source(draft.source)
        source.drafts += 1
        source.drafted += drafted
        source.accepted += accepted
        source.accepted_at.reach(accepted)

    def took(self, items: list[SequenceWork], result: Result, model: StepTime) -> None:
        """Add the step's time, and the predicted time without drafts: a shorter step, plus one such step's share for
        each accepted draft token. Only if plain steps of that size have been measured."""
        drafted = sum(len(item.draft.tokens) for item in items)
        if not drafted:
            return
        rows, context = size_of(items)
        deciding = sum(item.verify for item in items)
        if deciding < model.least_rows:
            return
        without, with_drafts = model.predict(rows - drafted, context), model.predict(rows, context)
        if with_drafts <= 0.0:
            return
        plain = model.predict(deciding, context)
        accepted = sum(verdict.accepted for verdict in result.verdicts if verdict is not None)
        self.drafted_seconds += result.seconds
        self.naive_seconds += result.seconds * (without + accepted * plain / deciding) / with_drafts
