"""Which drafts are verified, how much of them, and whether it is worth asking for more. Knows no pages and no sockets.

Before a step: of each lease as many tokens as pay (draft_length.py) become the draft; what follows is asked for
ahead, unless the lease will last. After it: the leases move along the text or go, trust.py learns, and who has none
left may be asked about before the next step, if that pays though it waits.

    choose ─▶ (planning) ─▶ (the step: settle ─▶ ahead) ─▶ take ─▶ judged ─▶ urgent ─┐
       ▲                                                                            │
       └────────────────────────────────── take ◀───────────────────────────────────┘

What the next step will wait for is known from the verdicts alone where a draft fell (fallen), and asked first.
What a step brought is written down only when the next one is on its way (settle), and what that one verifies was
thought of while the last one ran, in case that all drafts stand (foresee, choosing.py): on a GPU nobody waits for
either. In the milliseconds of a step a processor forgets our code and data: a line that runs between two steps takes
several times what it does in a loop.

All of this weighing is for the method auto. Requests with another method get drafts as long as they asked for, and are
asked about whenever they have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import msgspec

from services.api.drafts import DraftItem
from services.worker.running.runner import StepWork, Verdict
from services.worker.scheduling.events import AskDrafts, DraftAsk, DraftsReady
from services.worker.scheduling.limits import AUTO, Limits
from services.worker.scheduling.sequence import NO_DRAFT, Sequence, State
from services.worker.speculation import choosing, tree
from services.worker.speculation.choosing import Choice, Foreseen
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.counts import SpeculationCounts
from services.worker.speculation.lease import LONGEST_LEASE, Kind, Lease, lease_of
from services.worker.speculation.tree import CHAIN
from services.worker.speculation.trust import Record, Trust, Worth, grades
from services.worker.speculation.weighing import Outlook

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


class _Judged(msgspec.Struct, gc=False):
    """What came of a draft, and of the lease that the text was compared with, and isn't written down yet."""

    item: StepWork
    verdict: Verdict
    source: str
    lease: Lease | None = None
    # Which the draft came from, and what that had cost.
    used: Lease | None = None
    paid: float = 0.0
    token_seconds: float = 0.0
    # Where the text was along the lease, and where it is; whether that lives on.
    begin: int = 0
    end: int = 0
    lives: bool = True
    # Of a tree, the grades of those that stood above, and of others that were compared here.
    compared: tuple[list[int], list[int]] | None = None


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
        # What waits for time to spare: what was chosen, what came of it, and leases that ended with their requests.
        self._chosen: list[Choice] = []
        self._judged: list[_Judged] = []
        self._left: list[tuple[Sequence, Lease]] = []
        self._foreseen: Foreseen | None = None
        # With how many sequences run.
        self._outlook: tuple[int, Outlook | None] = 0, None
        self._since: dict[Kind, float] = dict.fromkeys(get_args(Kind), 0.0)
        # Of the step that is about to run: how long it takes without drafts, and what a token is worth in it.
        self._step_seconds = 0.0
        self._token_seconds = 0.0

    # Coming and going -----------------------------------------------------------------------------------

    def joined(self, sequence: Sequence) -> None:
        if sequence.method == AUTO and sequence.draft_length:
            record = sequence.record = self.trust.record(sequence.generate.namespace)
            sequence.worth = {kind: Worth(record.worth[kind]) for kind in get_args(Kind)}

    def left(self, sequence: Sequence) -> None:
        self._open.pop(sequence.id, None)
        self._foreseen = None
        lease, sequence.lease = sequence.lease, None
        if lease is not None:
            self._left.append((sequence, lease))

    def switch_off(self, sequence: Sequence) -> None:
        sequence.draft_length = 0
        sequence.draft, sequence.draft_parents = NO_DRAFT, CHAIN
        self._foreseen = None
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
        # At once: what is staked next is what is left.
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
                elif sequence.lease is not None:
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
        return not item.parents or tree.possible(tokens, item.parents)

    # Before a step --------------------------------------------------------------------------------------

    def choose(self, running: list[Sequence]) -> None:
        """What is verified of each lease in the next step."""
        foreseen, self._foreseen = self._foreseen, None
        (known, ahead), self._outlook = self._outlook, (0, None)
        if foreseen is not None and foreseen.is_of(running):
            choice: Choice | None = foreseen.choice
        else:
            # Who was let in meanwhile isn't in it.
            ahead = ahead if known == len(running) else None
            choice = choosing.choose(running, self._step_time, self._limits, ahead)
        if choice is None:
            return
        if choice.step_seconds:
            self._step_seconds, self._token_seconds = choice.step_seconds, choice.token_seconds
        for use in choice.uses:
            lease = use.lease
            if lease is not None:
                sequence = use.sequence
                sequence.draft, sequence.draft_parents = use.draft, use.parents
                sequence.source, sequence.match_length = lease.source, lease.match_length
                lease.paid = use.paid
                lease.excused |= use.excused
        self._chosen.append(choice)

    def look_out(self, running: list[Sequence]) -> None:
        """While drafts are waited for: what rows cost in the step that they are for."""
        self._outlook = len(running), choosing.look_out(running, self._step_time, self._limits)

    def foresee(self, work: list[StepWork], running: list[Sequence]) -> None:
        """While a step runs elsewhere: what is to be verified in the next one if all of this one's drafts stand."""
        self._foreseen = choosing.foresee(work, running, self._step_time, self._limits)

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

    def judged(self, work: list[StepWork], verdicts: list[Verdict | None]) -> None:
        """A step's verdicts, before the texts take them: the leases move along, or go."""
        for item, verdict in zip(work, verdicts, strict=True):
            sequence = item.sequence
            lease = sequence.lease
            if lease is None and not item.draft:
                continue
            if verdict is None or not verdict.tokens or sequence.state is not State.RUNNING:
                continue
            if lease is None:
                self._judged.append(_Judged(item, verdict, sequence.source))
                continue
            used, lease.before = lease.before or lease, None
            paid, used.paid = used.paid, 0.0
            begin, compared = lease.at, lease.judged(verdict.tokens) if lease.parents else None
            lives = lease.follow(verdict.tokens)
            if not lives:
                sequence.lease = None
            worth = self._token_seconds
            self._judged.append(
                _Judged(item, verdict, sequence.source, lease, used, paid, worth, begin, lease.at, lives, compared)
            )

    def settle(self) -> None:
        """Write down what was chosen for this step, and what the last one brought."""
        for choice in self._chosen:
            self._write_down_choice(choice)
        for judged in self._judged:
            self._write_down(judged)
        for sequence, lease in self._left:
            self._settle_both(sequence, lease)
        for each in (self._chosen, self._judged, self._left):
            each.clear()

    def _write_down_choice(self, choice: Choice) -> None:
        counts = self.counts
        if choice.step_seconds:
            # A little of the time goes into the purses.
            part = choice.step_seconds / choice.sequences
            for record in choice.records:
                record.time_passed(choice.step_seconds, part)
        for use in choice.uses:
            lease, count = use.lease, len(use.draft)
            if lease is None or not count:
                counts.came("none")
                continue
            if use.sequence.record is not None:
                use.sequence.record.drafted(count)
            counts.came("lease" if lease.used else lease.kind)
            lease.used = True
            if use.values is not None:
                counts.expected(lease, use.at, count, use.values, use.claims)

    def _write_down(self, judged: _Judged) -> None:
        item, lease, used, accepted = judged.item, judged.lease, judged.used, judged.verdict.accepted
        sequence, record, drafted = item.sequence, item.sequence.record, len(item.draft)
        if drafted:
            self.counts.judged(judged.source, drafted, accepted)
            sequence.stood_whole = accepted >= (len(tree.first_places(item.parents)) if item.parents else drafted)
        if lease is None or used is None:
            return
        grades, fallen, wrong = _compared(judged, lease)
        self.counts.dropped += wrong or (not judged.lives and bool(fallen))
        if record is None:
            return
        if drafted:
            won = accepted * judged.token_seconds - judged.paid
            record.account(won)
            used.brought += won
        if used is not lease:
            self._settle(sequence, used)
        if grades:
            record.source(lease.source).learn(grades, not wrong)
        for grade in fallen:
            record.source(lease.source).learn([grade], False)
        if not judged.lives:
            self._settle(sequence, lease)

    def time_passed(self, seconds: float) -> None:
        for kind in self._since:
            self._since[kind] += seconds

    def urgent(self, running: list[Sequence], share: Callable[[list[int]], int]) -> AskDrafts | None:
        """What the next step may wait for; `share` says of drafts so long how many rows each of them can have in it."""
        lacking = [(each, NO_DRAFT) for each in running if each.lease is None and each.wants_draft]
        if not lacking:
            return None
        fixed, weighed = self._questions(lacking, running, share)
        asks = fixed + self._worth_asking("asked", weighed, bool(fixed))
        if not asks:
            return None
        # Who takes what it gets waits as long as is allowed; where it is weighed, the wait has to be worth it, too.
        wait = WAIT_LONGER * self.costs["asked"]
        if self._step_seconds:
            wait = min(wait, WAIT_SHARE * self._step_seconds)
        return AskDrafts(self._opened(asks), 0.0 if fixed else wait)

    def fallen(
        self,
        work: list[StepWork],
        verdicts: list[Verdict | None],
        running: list[Sequence],
        share: Callable[[list[int]], int],
    ) -> list[DraftAsk]:
        """What `urgent` will say when the texts have taken these verdicts, about. Nothing is written down: it is asked
        before anything else is done, and what isn't sure can be asked later."""
        lacking: list[tuple[Sequence, list[int]]] = []
        for item, verdict in zip(work, verdicts, strict=True):
            sequence = item.sequence
            if verdict is None or not sequence.draft_length or sequence.state is not State.RUNNING:
                continue
            if not sequence.verifying:
                # Its prompt's end. How many rows drafts will have is known when it is written down.
                return []
            lease, tokens = sequence.lease, verdict.tokens
            if lease is not None and (lease.parents or lease.goes_on_with(tokens)):
                continue
            if not tokens or len(tokens) > sequence.limit - len(sequence.token_ids) - 2:
                continue
            if not sequence.stop_ids.isdisjoint(tokens):
                # It may end there.
                continue
            lacking.append((sequence, tokens))
        if not lacking:
            return []
        fixed, weighed = self._questions(lacking, running, share)
        return fixed + weighed if self._pays("asked", weighed, bool(fixed)) else fixed

    def _questions(
        self,
        lacking: list[tuple[Sequence, list[int]]],
        running: list[Sequence],
        share: Callable[[list[int]], int],
    ) -> tuple[list[DraftAsk], list[DraftAsk]]:
        """About those whose drafts are of fixed length, and those whose are weighed; each with what it is about to be
        given and isn't in its text yet."""
        without: list[DraftAsk] = []
        weighed: list[DraftAsk] = []
        for sequence, more in lacking:
            if sequence.record is None:
                without.append(DraftAsk(sequence, sequence.longest_draft, NO_DRAFT, more))
            else:
                room = sequence.limit - len(sequence.token_ids) - len(more) - 1
                weighed.append(DraftAsk(sequence, min(LONGEST_LEASE, room, sequence.record.enough), NO_DRAFT, more))
        return self._of_fixed_length(without, running, share) if without else without, weighed

    def _of_fixed_length(
        self, without: list[DraftAsk], running: list[Sequence], share: Callable[[list[int]], int]
    ) -> list[DraftAsk]:
        """Those that have drafts already want rows, too."""
        most = share([s.longest_draft for s in running if s.record is None and s.wants_draft])
        if not most:
            return []
        return [ask if ask.budget <= most else DraftAsk(ask.sequence, most, NO_DRAFT, ask.after) for ask in without]

    def _pays(self, kind: Kind, asks: list[DraftAsk], asked_anyway: bool) -> bool:
        gain, unknown = 0.0, asked_anyway
        for ask in asks:
            record: Record | None = ask.sequence.record
            if record is not None and not record.solvent:
                continue
            hope = ask.sequence.worth[kind].hope
            if hope is None:
                unknown = True
            elif hope > 0.0:
                gain += hope
        return unknown or gain > self.costs[kind]

    def _worth_asking(self, kind: Kind, asks: list[DraftAsk], asked_anyway: bool) -> list[DraftAsk]:
        if not asks:
            return []
        self._probing = not self._pays(kind, asks, asked_anyway)
        if not self._probing:
            # One more of them costs next to nothing.
            return asks
        if self._since[kind] * PROBE_SHARE < self.costs[kind]:
            return []
        self._since[kind] = 0.0
        return asks

    def _opened(self, asks: list[DraftAsk]) -> list[DraftAsk]:
        if asks:
            self._open = {ask.sequence.id: ask.sequence for ask in asks}
        return asks


def _compared(judged: _Judged, lease: Lease) -> tuple[list[int], list[int], bool]:
    """The grades of the claims that the text was compared with; of a tree, of those beside them, too; and whether the
    last one was wrong: it is learned from like the others."""
    if judged.compared is not None:
        return *judged.compared, False
    wrong = not judged.lives and judged.end < len(lease.tokens)
    return lease.grades[max(judged.begin, lease.certain) : judged.end + wrong], NO_DRAFT, wrong
