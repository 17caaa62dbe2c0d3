"""Which drafts are verified, how much of them, and whether it is worth asking for more. Knows no pages and no sockets.

Before a step: of each lease as many tokens as pay (draft_length.py) become the draft; what follows is asked for
ahead, unless the lease will last. After it: the leases move along the text or go, trust.py learns, and who has none
left may be asked about before the next step, if that pays though it waits.

    choose ─▶ (planning) ─▶ (the step: settle ─▶ ahead) ─▶ take ─▶ judged ─▶ urgent ─┐
       ▲                                                                            │
       └────────────────────────────────── take ◀───────────────────────────────────┘

What a step brought is written down only when the next one is on its way (settle): on a GPU nobody waits for that.

All of this weighing is for the method auto. Requests with another method get drafts as long as they asked for, and are
asked about whenever they have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from typing import NamedTuple, get_args

from services.messages import DraftItem
from services.target import tree
from services.target.events import AskDrafts, DraftAsk, DraftsReady
from services.target.lease import LONGEST_LEASE, Kind, Lease, lease_of
from services.target.limits import AUTO, Limits
from services.target.runner import StepWork, Verdict
from services.target.sequence import NO_DRAFT, Sequence
from services.target.speculation_counts import SpeculationCounts
from services.target.step_time import StepTime
from services.target.tree import CHAIN
from services.target.trust import Record, Trust, Worth, grades
from services.target.weighing import Entry, Plan, Size, chances, plan

# A lease with less than this left behind the draft is renewed.
FEW_LEFT = 4
# Questions that don't pay are asked all the same, for this part of the time: texts change.
PROBE_SHARE = 0.003
# What is waited for drafts at most: this part of a step's time, and so many times what a question usually takes.
WAIT_SHARE = 0.25
WAIT_LONGER = 8.0
# What a question costs, in seconds, before it was measured; and how many the measure rests on.
FIRST_COSTS: dict[Kind, float] = {"ahead": 1e-4, "asked": 2.5e-4}
COSTS = 16


class _Judged(NamedTuple):
    """What came of a lease in a step, and isn't written down yet."""

    sequence: Sequence
    lease: Lease
    # Which the draft came from, and what that had cost.
    used: Lease
    paid: float
    token_seconds: float
    drafted: int
    accepted: int
    # The grades of the tokens that were compared with the text; whether the last of them stood.
    grades: list[int]
    stood: bool
    ended: bool
    # Of a tree, the grades of those that stood above, and of others that were compared here.
    fallen: list[int]


class _Foreseen(NamedTuple):
    entries: list[Entry]
    size: Size
    plan: Plan

    def is_of(self, entries: list[Entry], size: Size) -> bool:
        """Whether it came as was assumed."""
        return self.size == size and self.entries == entries


class Drafting:
    def __init__(self, limits: Limits, step_time: StepTime) -> None:
        self.counts = SpeculationCounts()
        self.trust = Trust()
        # Seconds of the step thread that a question takes.
        self.costs = dict(FIRST_COSTS)
        self._limits = limits
        self._step_time = step_time
        # The sequences of the question that is open.
        self._open: dict[int, Sequence] = {}
        self._probing = False
        self._judged: list[_Judged] = []
        # Leases that ended with their requests.
        self._left: list[tuple[Sequence, Lease]] = []
        # (source, drafted, accepted) of the last step's drafts, for the metrics.
        self._told: list[tuple[str, int, int]] = []
        self._expected: list[tuple[Lease, int, int, list[float], float]] = []
        self._foreseen: _Foreseen | None = None
        self._since: dict[Kind, float] = dict.fromkeys(get_args(Kind), 0.0)
        # Of the step that is about to run: how long it takes without drafts, and what a token is worth in it.
        self._step_seconds = 0.0
        self._token_seconds = 0.0

    # Coming and going -----------------------------------------------------------------------------------

    def joined(self, sequence: Sequence) -> None:
        if sequence.method == AUTO and sequence.draft_length:
            record = sequence.record = self.trust.record(sequence.generate.namespace)
            sequence.worth = {kind: Worth(record.worth[kind].seconds) for kind in get_args(Kind)}

    def left(self, sequence: Sequence) -> None:
        self._open.pop(sequence.id, None)
        self._foreseen = None
        lease, sequence.lease = sequence.lease, None
        if lease is not None:
            self._left.append((sequence, lease))

    def switch_off(self, sequence: Sequence) -> None:
        sequence.draft_length = 0
        sequence.draft, sequence.draft_parents = NO_DRAFT, CHAIN
        self._drop(sequence)

    def check_idle(self) -> None:
        assert not self._open

    def _drop(self, sequence: Sequence) -> None:
        lease, sequence.lease = sequence.lease, None
        if lease is not None:
            self._settle_both(sequence, lease)

    def _settle_both(self, sequence: Sequence, lease: Lease) -> None:
        self._settle(sequence, lease)
        if lease.before is not None:
            self._settle(sequence, lease.before)

    def _settle(self, sequence: Sequence, lease: Lease) -> None:
        """What came of a question is known."""
        if lease.used or not lease.excused:
            self._learn_worth(sequence, lease.kind, lease.brought)

    def _learn_worth(self, sequence: Sequence, kind: Kind, seconds: float) -> None:
        if sequence.record is not None:
            sequence.worth[kind].learn(seconds)
            sequence.record.worth[kind].learn(seconds)

    # Answers --------------------------------------------------------------------------------------------

    def take(self, event: DraftsReady, by_id: Mapping[int, Sequence]) -> None:
        kind: Kind = "ahead" if event.ahead else "asked"
        asked, self._open = self._open, {}
        self._pay(kind, event.seconds, asked)
        for item in event.drafts:
            sequence = by_id.get(item.sequence_id)
            if sequence is None or not sequence.draft_length:
                continue
            if not self._possible(item):
                self.counts.refused += 1
                continue
            lease = lease_of(item, event.followed.get(sequence.id, ()), sequence.token_ids, kind)
            if lease is None:
                self.counts.late += 1
            elif sequence.lease is None or sequence.lease.left <= lease.left:
                if sequence.lease is not None and sequence.lease.paid:
                    lease.before = sequence.lease
                else:
                    self._drop(sequence)
                lease.grades = grades(lease.chances, tree.besides(lease.parents) if lease.parents else ())
                sequence.lease = lease
                asked.pop(sequence.id, None)
        for sequence in asked.values():
            self._learn_worth(sequence, kind, 0.0)

    def _pay(self, kind: Kind, seconds: float, asked: dict[int, Sequence]) -> None:
        if seconds <= 0:
            return
        self.costs[kind] += (seconds - self.costs[kind]) / COSTS
        self.counts.asking_seconds[kind] += seconds
        if self._probing:
            # These have their own part of the time.
            return
        for sequence in asked.values():
            if sequence.record is not None:
                sequence.record.account(-seconds / len(asked))

    def _possible(self, item: DraftItem) -> bool:
        tokens = item.tokens
        if not tokens or min(tokens) < 0 or max(tokens) >= self._limits.vocab_size:
            return False
        return tree.possible(tokens, item.parents)

    # Before a step --------------------------------------------------------------------------------------

    def choose(self, running: list[Sequence]) -> None:
        """What is verified of each lease in the next step."""
        entries: list[Entry] = []
        auto = False
        for sequence in running:
            sequence.draft, sequence.draft_parents = NO_DRAFT, CHAIN
            auto |= sequence.record is not None
            if not sequence.wants_draft:
                continue
            if sequence.lease is None:
                self.counts.came("none")
            elif sequence.record is None:
                self._use(sequence, sequence.lease, sequence.longest_draft, sequence.lease.chances)
            else:
                lease = sequence.lease
                entries.append(Entry(sequence, lease, lease.at, sequence.longest_draft))
        if auto:
            self._weigh(running, entries)

    def _use(self, sequence: Sequence, lease: Lease, count: int, chances: Items[float]) -> None:
        """`count` tokens of it; `chances`: what makes a tree's tokens better than others."""
        if lease.parents:
            places = lease.best(lease.cumulated(chances), count, sequence.longest_draft)
            draft, sequence.draft_parents = tree.chosen(lease.tokens, lease.parents, places)
        else:
            draft = lease.next(count)
        sequence.draft = draft
        sequence.source = lease.source
        sequence.match_length = lease.match_length
        self.counts.came("none" if not draft else "lease" if lease.used else lease.kind)
        lease.used |= bool(draft)

    def _weigh(self, running: list[Sequence], entries: list[Entry]) -> None:
        size = self._plain_step(running)
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and foreseen.is_of(entries, size):
            chosen = foreseen.plan
        else:
            chosen = plan(entries, size, self._step_time, self._limits)
        if chosen.step_seconds:
            self._step_seconds = chosen.step_seconds
            self._token_seconds = chosen.token_seconds
            self._time_passes(running)
        for entry, longest, value, wanted, count in zip(
            entries, chosen.longest, chosen.values, chosen.wanted, chosen.counts, strict=True
        ):
            sequence, lease = entry.sequence, entry.lease
            self._use(sequence, lease, count, chances(sequence, lease) if lease.parents else ())
            lease.excused |= not longest or chosen.unknown or (not count and wanted > 0)
            lease.paid = chosen.a_row * count
            if count:
                claims = lease.claims(count) if lease.parents else 0.0
                self._expected.append((lease, lease.at, count, value, claims))

    def foresee(self, work: list[StepWork], running: list[Sequence]) -> None:
        """While a step runs elsewhere: what is to be verified in the next one if all of this one's drafts stand."""
        entries: list[Entry] = []
        context = 0
        for item in work:
            sequence, more = item.sequence, len(item.draft) + 1
            lease, length = sequence.lease, len(sequence.token_ids) + more
            if not item.verify or item.parents or sequence.record is None or (lease is not None and lease.parents):
                return
            context += length
            room = min(sequence.draft_length, sequence.limit - length - 1)
            if lease is not None and lease.left > more and room > 0:
                entries.append(Entry(sequence, lease, lease.at + more, room))
        if entries and len(work) == len(running):
            size = Size(len(work), len(work), context)
            self._foreseen = _Foreseen(entries, size, plan(entries, size, self._step_time, self._limits))

    def _plain_step(self, running: list[Sequence]) -> Size:
        certain = context = chunks = drafts = 0
        for sequence in running:
            missing = len(sequence.token_ids) - sequence.computed
            context += len(sequence.token_ids)
            drafts += len(sequence.draft)
            if missing == 1:
                certain += 1
            else:
                chunks += missing
        decoding = certain + drafts
        chunks = max(0, min(chunks, self._limits.max_step_tokens - decoding))
        return Size(decoding + chunks, certain, context, chunks)

    def _time_passes(self, running: list[Sequence]) -> None:
        """A little of it goes into the purses."""
        part = self._step_seconds / len(running)
        for sequence in running:
            if sequence.record is not None:
                sequence.record.time_passed(self._step_seconds, part)

    def ahead(self, work: list[StepWork]) -> list[DraftAsk]:
        """What to ask while this step runs: what follows if all of its drafts stand, of a tree the likeliest way."""
        asks: list[DraftAsk] = []
        weighed: list[DraftAsk] = []
        for item in work:
            sequence, draft = item.sequence, item.draft
            if not sequence.draft_length or not item.verify:
                continue
            if item.parents:
                draft = tree.first_path(draft, item.parents)
            # Of the draft behind this one and the token after it; the last token is the target's own again.
            room = sequence.limit - len(sequence.token_ids) - len(draft) - 2
            lease = sequence.lease
            if sequence.record is None:
                # What follows a draft is of use only if that stands: it does where the last one did.
                if draft and room > 0 and sequence.stood_whole:
                    wanted = min(sequence.draft_length, room)
                    if lease is None or lease.left - len(draft) - 1 < wanted:
                        asks.append(DraftAsk(sequence, wanted + 1, draft))
            elif room > 0 and (lease is None or lease.left - len(draft) - 1 < max(FEW_LEFT, len(draft))):
                weighed.append(DraftAsk(sequence, min(LONGEST_LEASE, room + 1), draft))
        asks += self._worth_asking("ahead", weighed, bool(asks))
        return self._opened(asks)

    # After a step ---------------------------------------------------------------------------------------

    def judged(self, item: StepWork, verdict: Verdict) -> None:
        """A verdict, before the text takes it."""
        sequence, drafted, accepted = item.sequence, len(item.draft), verdict.accepted
        if drafted:
            self._told.append((sequence.source, drafted, accepted))
            whole = len(tree.first_places(item.parents)) if item.parents else drafted
            sequence.stood_whole = accepted >= whole
        lease = sequence.lease
        if lease is None:
            return
        used, lease.before = lease.before or lease, None
        paid, used.paid = used.paid, 0.0
        fallen = NO_DRAFT
        if lease.parents:
            compared, fallen = lease.judged(verdict.tokens)
            lives, wrong = lease.follow(verdict.tokens), False
        else:
            begin = max(lease.at, lease.certain)
            lives = lease.follow(verdict.tokens)
            # The first one that was wrong is learned from, too.
            wrong = not lives and lease.at < len(lease.tokens)
            compared = lease.grades[begin : lease.at + wrong]
        if not lives:
            sequence.lease = None
            self.counts.dropped += wrong or bool(fallen)
        if sequence.record is not None:
            worth = self._token_seconds
            self._judged.append(
                _Judged(sequence, lease, used, paid, worth, drafted, accepted, compared, not wrong, not lives, fallen)
            )

    def settle(self) -> None:
        """Write down what the last step brought."""
        for lease, at, count, values, claims in self._expected:
            self.counts.expected(lease, at, count, values, claims)
        for source, drafted, accepted in self._told:
            self.counts.judged(source, drafted, accepted)
        for judged in self._judged:
            self._write_down(judged)
        for sequence, lease in self._left:
            self._settle_both(sequence, lease)
        for each in (self._expected, self._told, self._judged, self._left):
            each.clear()

    def _write_down(self, judged: _Judged) -> None:
        sequence, lease, used, record = judged.sequence, judged.lease, judged.used, judged.sequence.record
        assert record is not None
        if judged.drafted:
            won = judged.accepted * judged.token_seconds - judged.paid
            record.account(won)
            used.brought += won
        if used is not lease:
            self._settle(sequence, used)
        if judged.grades:
            record.source(lease.source).learn(judged.grades, judged.stood)
        for grade in judged.fallen:
            record.source(lease.source).learn([grade], False)
        if judged.ended:
            self._settle(sequence, lease)

    def time_passed(self, seconds: float) -> None:
        for kind in self._since:
            self._since[kind] += seconds

    def urgent(self, running: list[Sequence], share: Callable[[list[int]], int]) -> AskDrafts | None:
        """What the next step may wait for; `share` says of drafts so long how many rows each of them can have in it."""
        without: list[Sequence] = []
        weighed: list[DraftAsk] = []
        for sequence in running:
            if sequence.lease is not None or not sequence.wants_draft:
                continue
            if sequence.record is None:
                without.append(sequence)
            else:
                room = sequence.limit - len(sequence.token_ids) - 1
                weighed.append(DraftAsk(sequence, min(LONGEST_LEASE, room)))
        asks = self._of_fixed_length(without, running, share) if without else []
        fixed = bool(asks)
        asks += self._worth_asking("asked", weighed, fixed)
        if not asks:
            return None
        # Who takes what it gets waits as long as is allowed; where it is weighed, the wait has to be worth it, too.
        wait = WAIT_LONGER * self.costs["asked"]
        if self._step_seconds:
            wait = min(wait, WAIT_SHARE * self._step_seconds)
        return AskDrafts(self._opened(asks), 0.0 if fixed else wait)

    def _of_fixed_length(
        self, without: list[Sequence], running: list[Sequence], share: Callable[[list[int]], int]
    ) -> list[DraftAsk]:
        """Those that have drafts already want rows, too."""
        most = share([s.longest_draft for s in running if s.record is None and s.wants_draft])
        return [DraftAsk(s, min(s.longest_draft, most)) for s in without] if most else []

    def _worth_asking(self, kind: Kind, asks: list[DraftAsk], asked_anyway: bool) -> list[DraftAsk]:
        if not asks:
            return []
        gain, unknown = 0.0, asked_anyway
        for ask in asks:
            worth = self._worth(ask.sequence, kind)
            unknown |= worth is None
            gain += max(0.0, worth or 0.0)
        self._probing = not unknown and gain <= self.costs[kind]
        if not self._probing:
            # One more of them costs next to nothing.
            return asks
        if self._since[kind] * PROBE_SHARE < self.costs[kind]:
            return []
        self._since[kind] = 0.0
        return asks

    def _worth(self, sequence: Sequence, kind: Kind) -> float | None:
        record: Record | None = sequence.record
        if record is not None and not record.solvent:
            return 0.0
        return sequence.worth[kind].seconds

    def _opened(self, asks: list[DraftAsk]) -> list[DraftAsk]:
        if asks:
            self._open = {ask.sequence.id: ask.sequence for ask in asks}
        return asks
