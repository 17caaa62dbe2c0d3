"""What is counted of drafts, for the metrics: by where they came from, and how they came. Nothing is decided by it."""

from __future__ import annotations

from collections.abc import Sequence as Items

from services.worker.running.positions import Positions
from services.worker.running.runner import StepWork, Verdict, size_of
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.lease import LONGEST_LEASE, Kind, Lease
from services.worker.speculation.trust import MOST_SOURCES, OTHERS

# How the draft of a sequence's step came: left over from an earlier one, asked for while the last step ran, waited for,
# or not at all.
CAME = ("lease", "ahead", "asked", "none")


class SourceCounts:
    __slots__ = ("accepted", "accepted_at", "believed", "claimed", "drafted", "drafts")

    def __init__(self) -> None:
        self.drafts = 0
        self.drafted = 0
        self.accepted = 0
        self.accepted_at = Positions()
        # Tokens of weighed drafts that were to stand, by what the proposer said and by what was made of it.
        self.claimed = 0.0
        self.believed = 0.0


class SpeculationCounts:
    def __init__(self) -> None:
        self.sources: dict[str, SourceCounts] = {}
        self.ways = dict.fromkeys(CAME, 0)
        # Drafts of each length.
        self.lengths = [0] * (LONGEST_LEASE + 1)
        self.asking_seconds: dict[Kind, float] = {"ahead": 0.0, "asked": 0.0}
        # Steps that had drafts: what they took, and what their tokens would have taken without.
        self.drafted_seconds = 0.0
        self.naive_seconds = 0.0
        self.refused = 0
        self.late = 0
        self.dropped = 0

    def source(self, name: str) -> SourceCounts:
        found = self.sources.get(name)
        if found is None:
            # The names are the proposer's.
            name = name if len(self.sources) < MOST_SOURCES else OTHERS
            found = self.sources.setdefault(name, SourceCounts())
        return found

    def came(self, way: str) -> None:
        self.ways[way] += 1

    def expected(self, lease: Lease, at: int, count: int, values: list[float], claims: float = 0.0) -> None:
        """So many tokens of the lease were to be verified, from `at` on; of a tree that many, which claimed so much."""
        source = self.source(lease.source)
        source.believed += sum(values[:count])
        if claims:
            source.claimed += claims
            return
        claimed = 1.0
        for chance in lease.chances[at : at + count]:
            claimed *= chance
            source.claimed += claimed

    def judged(self, name: str, drafted: int, accepted: int) -> None:
        self.lengths[min(drafted, LONGEST_LEASE)] += 1
        source = self.source(name)
        source.drafts += 1
        source.drafted += drafted
        source.accepted += accepted
        source.accepted_at.reach(accepted)

    def took(self, work: Items[StepWork], verdicts: Items[Verdict | None], seconds: float, model: StepTime) -> None:
        """Without its drafts the step would have been as much shorter as `model` says, and each draft token that stood
        would have been a token of one more such step. Compared only where plain steps of that size were seen."""
        drafted = sum(len(item.draft) for item in work)
        if not drafted:
            return
        rows, context = size_of(work)
        deciding = sum(item.verify for item in work)
        if deciding < model.least_rows:
            return
        curve = model.curve(rows - drafted, drafted, context)
        plain = model.curve(deciding, 0, context)
        if not curve or curve[-1] <= 0.0:
            return
        accepted = sum(verdict.accepted for verdict in verdicts if verdict is not None)
        self.drafted_seconds += seconds
        self.naive_seconds += seconds * (curve[0] + accepted * plain[0] / deciding) / curve[-1]
