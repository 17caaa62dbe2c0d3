"""What a step verifies of each lease, decided before the step, or while the one before it runs: then on the assumption
that all of its drafts stand.

    the step that runs    text . . . .|d d d|            the next one    text . . . . d d d x|
                          lease        d d d x e f g                     lease                e f g
                                                                         assumed: here it is, and the lease goes on

Pure functions; drafting.py does what was decided, and only where all is as it was assumed. How much pays is
weighing.py's.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import msgspec

from services.worker.running.runner import StepWork
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.sequence import NO_DRAFT, Sequence
from services.worker.speculation import tree
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.lease import LONGEST_LEASE, Lease
from services.worker.speculation.tree import CHAIN
from services.worker.speculation.trust import Record
from services.worker.speculation.weighing import Entry, Outlook, Size, alone, chances, outlook, plan


class Use(msgspec.Struct, gc=False):
    """What a step verifies of a lease (None: there is none), and what is noted with it."""

    sequence: Sequence
    lease: Lease | None
    draft: list[int]
    parents: list[int]
    # What its rows cost, in seconds.
    paid: float = 0.0
    # Nothing is held against it if nothing comes of it.
    excused: bool = False
    # Of a weighed draft, where it begins in the lease, what each of its tokens is thought to be worth, and of a tree
    # what it claims.
    at: int = 0
    values: list[float] | None = None
    claims: float = 0.0


class Choice(msgspec.Struct):
    """Of a whole step: what it verifies; the purses that time goes into; how many sequences share the time it takes
    without drafts, how long that is, and what a token is worth in it (0: nobody knows)."""

    uses: list[Use]
    records: list[Record] = []
    sequences: int = 0
    step_seconds: float = 0.0
    token_seconds: float = 0.0


class Assumed(msgspec.Struct, gc=False):
    """Where a text and its lease are once all of the draft stands: all but the last token is computed."""

    sequence: Sequence
    computed: int
    lease: Lease | None
    at: int


class Foreseen(msgspec.Struct):
    assumed: list[Assumed]
    choice: Choice

    def is_of(self, running: list[Sequence]) -> bool:
        """Whether it came so: these run and no others, each with its next draft to be verified."""
        if len(running) != len(self.assumed):
            return False
        for sequence, assumed in zip(running, self.assumed, strict=True):
            lease = assumed.lease
            if (
                sequence is not assumed.sequence
                or sequence.computed != assumed.computed
                or not sequence.verifying
                or sequence.lease is not lease
                or (lease is not None and lease.at != assumed.at)
            ):
                return False
        return True


def look_out(running: list[Sequence], model: StepTime, limits: Limits) -> Outlook | None:
    """What `choose` will have to know of the next step, before it is known what might be verified in it; None where
    nothing can be said, or nothing is weighed."""
    wanted = 0
    for sequence in running:
        lease, record = sequence.lease, sequence.record
        if record is not None:
            left = record.enough if lease is None else len(lease.tokens) - lease.at
            wanted += min(LONGEST_LEASE, left, sequence.longest_draft)
        elif sequence.wants_draft:
            return None
    return outlook(_plain_step(running, [], limits), wanted, model, limits)


def choose(
    running: list[Sequence], model: StepTime, limits: Limits, foreseen: Outlook | None = None
) -> Choice | None:
    """For the next step; None where nobody drafts. `foreseen`: what was seen of it before, and is so
    still."""
    if foreseen is not None and len(running) == 1 and (choice := _alone(running[0], foreseen)) is not None:
        return choice
    uses: list[Use] = []
    entries: list[Entry] = []
    auto = False
    for sequence in running:
        lease = sequence.lease
        auto = auto or sequence.record is not None
        if not sequence.wants_draft:
            continue
        if lease is None:
            uses.append(Use(sequence, None, NO_DRAFT, CHAIN))
        elif sequence.record is None:
            count = sequence.longest_draft
            draft, parents = _draft(lease, count, lease.at, lease.chances, count)
            uses.append(Use(sequence, lease, draft, parents))
        else:
            entries.append(Entry(sequence, lease, lease.at, sequence.longest_draft))
    if not auto:
        return Choice(uses) if uses else None
    if foreseen is None:
        foreseen = outlook(_plain_step(running, uses, limits), _wanted(entries), model, limits)
    return _weighed(uses, entries, foreseen, running)


def _alone(sequence: Sequence, ahead: Outlook) -> Choice | None:
    """For the only one that runs, and waited for what it has: without the lists of a batch, which take as long again.
    None: it isn't as simple."""
    lease, record = sequence.lease, sequence.record
    if lease is None or record is None or not sequence.verifying:
        return None
    at = lease.at
    longest = min(len(lease.tokens) - at, sequence.draft_length, sequence.limit - len(sequence.token_ids) - 1)
    if (found := alone(record, lease, longest, ahead)) is None:
        return None
    values, count, a_row = found
    use = Use(sequence, lease, lease.next(count), CHAIN, a_row * count, ahead.unknown, at, values[:count])
    return Choice([use], [record], 1, ahead.step_seconds, ahead.token_seconds)


def foresee(work: list[StepWork], running: list[Sequence], model: StepTime, limits: Limits) -> Foreseen | None:
    """For the step after this one. None where that is not to be known yet, or nothing would be weighed."""
    assumed: list[Assumed] = []
    uses: list[Use] = []
    entries: list[Entry] = []
    context = 0
    for item in work:
        sequence, more = item.sequence, len(item.draft) + 1
        lease, length = sequence.lease, len(sequence.token_ids) + more
        if not item.verify or item.parents or sequence.record is None or (lease is not None and lease.parents):
            return None
        if lease is not None and lease.left <= more:
            # It ends with this draft.
            lease = None
        at = 0 if lease is None else lease.at + more
        assumed.append(Assumed(sequence, length - 1, lease, at))
        context += length
        room = min(sequence.draft_length, sequence.limit - length - 1)
        if room <= 0:
            continue
        if lease is None:
            uses.append(Use(sequence, None, NO_DRAFT, CHAIN))
        else:
            entries.append(Entry(sequence, lease, at, room))
    if not entries or len(work) != len(running):
        return None
    size = Size(len(work), len(work), context)
    return Foreseen(assumed, _weighed(uses, entries, outlook(size, _wanted(entries), model, limits), running))


def _wanted(entries: list[Entry]) -> int:
    return sum([min(len(lease.tokens) - at, room) for _, lease, at, room in entries])


def _weighed(uses: list[Use], entries: list[Entry], ahead: Outlook, running: list[Sequence]) -> Choice:
    """`uses`: what there is besides."""
    found = plan(entries, ahead)
    for entry, longest, values, wanted, count in zip(
        entries, found.longest, found.values, found.wanted, found.counts, strict=True
    ):
        sequence, lease, at, room = entry
        a_tree = bool(lease.parents)
        draft, parents = _draft(lease, count, at, chances(sequence, lease) if a_tree else (), room)
        excused = not longest or ahead.unknown or (not count and wanted > 0)
        claims = lease.claims(count) if a_tree and count else 0.0
        uses.append(Use(sequence, lease, draft, parents, found.a_row * count, excused, at, values[:count], claims))
    records = [sequence.record for sequence in running if sequence.record is not None]
    return Choice(uses, records, len(running), ahead.step_seconds, ahead.token_seconds)


def _draft(lease: Lease, count: int, at: int, chances: Items[float], room: int) -> tuple[list[int], list[int]]:
    """`count` tokens of the lease; of a tree the best, by their `chances`, and none further from the text than
    `room`."""
    if not lease.parents:
        return lease.next(count, at), CHAIN
    places = lease.best(lease.cumulated(chances), count, room)
    return tree.chosen(lease.tokens, lease.parents, places)


def _plain_step(running: list[Sequence], uses: list[Use], limits: Limits) -> Size:
    """`uses`: the drafts that aren't weighed."""
    certain = context = chunks = 0
    for sequence in running:
        missing = len(sequence.token_ids) - sequence.computed
        context += len(sequence.token_ids)
        if missing == 1:
            certain += 1
        else:
            chunks += missing
    decoding = certain + sum(len(use.draft) for use in uses)
    chunks = max(0, min(chunks, limits.max_step_tokens - decoding))
    return Size(decoding + chunks, certain, context, chunks)
