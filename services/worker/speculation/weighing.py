"""How much of each lease is verified in a step: as many rows as bring the most tokens per second, by what a step costs
and by what is believed of the leases' claims, and no more than the purses can pay (trust.py). Changes nothing; knows
no questions and no answers.
"""

from __future__ import annotations

from typing import NamedTuple

from services.worker.scheduling.limits import Limits
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.cost_model import StepTime
from services.worker.speculation.draft_length import WORTH_IT, cumulated, lengths, modest
from services.worker.speculation.lease import Lease
from services.worker.speculation.trust import Record

# Rows for drafts while nothing is known of what steps cost, and how far beyond what is known a step may go.
MODEST_ROWS = 4
FURTHER = 2


class Size(NamedTuple):
    """Rows, tokens that come of it, and context of a step without the drafts that are weighed, about; and how many of
    the rows are of prompts, and bring nothing yet."""

    rows: int
    certain: int
    context: int
    chunks: int = 0


class Entry(NamedTuple):
    """A lease of which the text is (or will be) at `at`; the draft has room for so many tokens."""

    sequence: Sequence
    lease: Lease
    at: int
    room: int


class Outlook(NamedTuple):
    """What a step of that size may cost with up to `most` rows more, whatever drafts there will be: seconds[k] with k
    of them, less what its prompts take ([]: nobody knows). Without any it takes `step_seconds`, and a token saves
    `token_seconds`; 0: nobody knows. `unknown`: no such step has been seen."""

    size: Size
    most: int
    unknown: bool
    seconds: list[float]
    step_seconds: float = 0.0
    token_seconds: float = 0.0


class Plan(NamedTuple):
    """By entry: the most that could be verified, what that is worth token by token, how much was to be verified, and
    how much can be paid. A row more takes `a_row`; 0: nobody knows."""

    longest: list[int]
    values: list[list[float]]
    wanted: list[int]
    counts: list[int]
    a_row: float


def outlook(size: Size, wanted: int, model: StepTime, limits: Limits) -> Outlook:
    """`wanted`: rows that drafts might want."""
    unknown = size.rows < model.least_rows or not model.steps
    known = MODEST_ROWS if unknown else max(MODEST_ROWS, FURTHER * model.most_rows - size.rows)
    most = max(0, min(wanted, limits.max_step_tokens - size.rows, known))
    curve = model.curve(size.rows, most, size.context)
    if not curve:
        return Outlook(size, most, unknown, curve)
    step_seconds = curve[0]
    if size.chunks:
        # Prompts have to be computed anyway. A token saves its part of a later step, which is not as long as this one.
        alone = model.curve(size.rows - size.chunks, 0, size.context)[0]
        curve = [alone + seconds - step_seconds for seconds in curve]
    return Outlook(size, most, unknown, curve, step_seconds, curve[0] / max(1, size.certain))


def plan(entries: list[Entry], ahead: Outlook) -> Plan:
    longest = [
        min(len(lease.tokens) - at, room) if sequence.record is not None and sequence.record.solvent else 0
        for sequence, lease, at, room in entries
    ]
    values = [_values(entry, count) for entry, count in zip(entries, longest, strict=True)]
    seconds = ahead.seconds
    if not seconds:
        wanted = modest(longest, ahead.most)
        return Plan(longest, values, wanted, wanted, 0.0)
    wanted = lengths(values, ahead.size.certain, seconds)
    counts = _afforded(entries, wanted, seconds)
    total = sum(counts)
    # What the rows cost, shared by those who wanted them.
    a_row = (seconds[total] - seconds[0]) / total if total else 0.0
    return Plan(longest, values, wanted, counts, a_row)


def alone(record: Record, lease: Lease, longest: int, ahead: Outlook) -> tuple[list[float], int, float] | None:
    """Of a chain that shares its step with nobody, and of which so many tokens may be verified: what these are worth,
    how many are to be, and what a row takes. As `plan` says, in one loop: what that calls takes long where it wasn't
    called for a while. None: `plan` has to say it."""
    at, seconds = lease.at, ahead.seconds
    if longest <= 0 or not record.solvent or not seconds or seconds[0] <= 0.0 or lease.parents:
        return None
    rates = record.source(lease.source).rates
    tokens, chance, rows, values = float(ahead.size.certain), 1.0, 0, []
    best = first = tokens / seconds[0]
    for grade, cost in zip(lease.grades[at : at + longest], seconds[1:], strict=False):
        chance *= rates[grade]
        tokens += chance
        values.append(chance)
        if (rate := tokens / cost) > best:
            best, rows = rate, len(values)
    if best < first * WORTH_IT:
        rows = 0
    a_row = (seconds[rows] - seconds[0]) / rows if rows else 0.0
    return (values, rows, a_row) if a_row <= 0.0 or record.affords(rows * a_row) else None


def chances(sequence: Sequence, lease: Lease) -> list[float]:
    """Of a tree's tokens, as they are believed."""
    assert sequence.record is not None
    rates = sequence.record.source(lease.source).rates
    return [1.0] * lease.certain + [rates[grade] for grade in lease.grades[lease.certain :]]


def _values(entry: Entry, longest: int) -> list[float]:
    sequence, lease, at, room = entry
    if not longest or sequence.record is None:
        return []
    if lease.parents:
        values = lease.cumulated(chances(sequence, lease))
        return [values[place] for place in lease.best(values, longest, room)]
    rates = sequence.record.source(lease.source).rates
    return cumulated([rates[grade] for grade in lease.grades[at : at + longest]])


def _afforded(entries: list[Entry], counts: list[int], curve: list[float]) -> list[int]:
    """Nobody stakes more than is in its purse; those who share one have equal parts."""
    total = sum(counts)
    if not total:
        return counts
    a_row = (curve[total] - curve[0]) / total
    if a_row <= 0.0:
        return counts
    if all(each.sequence.record is not None and each.sequence.record.affords(total * a_row) for each in entries):
        # Each of them could pay for all.
        return counts
    sharing: dict[int, list[int]] = {}
    for index, entry in enumerate(entries):
        sharing.setdefault(id(entry.sequence.record), []).append(index)
    afforded = list(counts)
    for indices in sharing.values():
        record = entries[indices[0]].sequence.record
        wanted = [counts[index] for index in indices]
        if record is None or record.purse is None or record.affords(sum(wanted) * a_row):
            continue
        rows = max(1, int(max(0.0, record.purse) / a_row))
        for index, count in zip(indices, modest(wanted, rows), strict=True):
            afforded[index] = count
    return afforded
