"""What every source predicted for each token of a draft, kept until the text has gone on and shows which were right:
the records of plain/blending.py, compiled."""

from __future__ import annotations

from services.proposer.fast.drafting.chances import seen
from services.proposer.fast.drafting.records import LONGEST, SPARE
from services.proposer.native import Doubles, Ints, Record, loop


@loop
def compare(both: Record, text: Ints, rates: Doubles) -> None:
    """Compares the records with the text, the earlier one first, and measures the rates."""
    for turn in range(2):
        record = both.records[both.later if turn else 1 - both.later]
        while record.compared < record.count and record.made_at + record.compared < text.size:
            entry, token = record.entries[record.compared], text[record.made_at + record.compared]
            if record.compared >= record.ahead:
                for at in range(3):
                    seen(rates, entry.cells[at], entry.token == token)
                for which in range(record.sources):
                    if entry.by_cell[which] >= 0:
                        seen(rates, entry.by_cell[which], entry.by_token[which] == token)
            record.compared += 1
            if entry.token != token:
                record.count = 0


@loop
def begin(both: Record, made_at: int, ahead: Ints, sources: int) -> int:
    """Which record is an empty one now: the earlier of the two, or the spare one where there is a record of the same
    place already."""
    number = 1 - both.later
    for which in range(2):
        other = both.records[which]
        if other.made_at == made_at and other.ahead == ahead.size and other.sources:
            number = SPARE
    if number != SPARE:
        both.later = number
    record = both.records[number]
    record.made_at, record.ahead, record.compared, record.count, record.sources = made_at, ahead.size, 0, 0, sources
    for at in range(min(LONGEST, ahead.size)):
        record.entries[at].token = ahead[at]
    return number  # type: ignore[no-any-return]
