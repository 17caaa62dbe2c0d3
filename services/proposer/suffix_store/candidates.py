"""What each source guessed last for a text, chosen or not, until the text has gone on and it is known what stood.
Compiled into the one call of step.py.

A source has two candidates: the one made while a draft is verified, behind that draft, and the one before it. Tokens
that a guess was made behind are part of it, without a cell: they are only waited for. A guess counts up to its first
wrong token, and not at all where the text hasn't come to it, or was asked about anew.
"""

from __future__ import annotations

from services.proposer.suffix_store.chances import SOURCES, seen
from services.proposer.suffix_store.native import Floats, Ints, loop

LONGEST = 64
# A candidate's words: behind how much text it was made and how many tokens ahead of it, its tokens, how many of them
# are compared with the text; then tokens and cells.
MADE_AT, AHEAD, COUNT, COMPARED = range(4)
_HEAD = 4
CANDIDATE_WORDS = _HEAD + 2 * 2 * LONGEST
# Candidates of a text, and behind them which of a source's two is the later one.
OF_A_TEXT = 2 * SOURCES
TEXT_WORDS = OF_A_TEXT * CANDIDATE_WORDS + SOURCES


@loop
def compare(candidates: Ints, text: Ints, table: Floats) -> None:
    """With what the text has become."""
    for which in range(OF_A_TEXT):
        one = candidates[which * CANDIDATE_WORDS : (which + 1) * CANDIDATE_WORDS]
        while one[COMPARED] < one[COUNT] and one[MADE_AT] + one[COMPARED] < text.size:
            at = one[COMPARED]
            one[COMPARED] += 1
            stood = text[one[MADE_AT] + at] == one[_HEAD + at]
            cell = one[_HEAD + 2 * LONGEST + at]
            if cell >= 0:
                seen(table, cell, stood)
            if not stood:
                one[COUNT] = 0


@loop
def remember(candidates: Ints, source: int, made_at: int, ahead: Ints, tokens: Ints, cells: Ints, count: int) -> None:
    """In the place of the earlier of the source's two, or of one that was made for the same."""
    later = candidates[OF_A_TEXT * CANDIDATE_WORDS + source : OF_A_TEXT * CANDIDATE_WORDS + source + 1]
    begin = (2 * source + later[0]) * CANDIDATE_WORDS
    if candidates[begin + MADE_AT] != made_at or candidates[begin + AHEAD] != ahead.size:
        later[0] = 1 - later[0]
        begin = (2 * source + later[0]) * CANDIDATE_WORDS
    one = candidates[begin : begin + CANDIDATE_WORDS]
    one[MADE_AT], one[AHEAD], one[COMPARED], one[COUNT] = made_at, ahead.size, 0, 0
    if not count or ahead.size > LONGEST:
        return
    one[COUNT] = ahead.size + count
    for at in range(ahead.size):
        one[_HEAD + at], one[_HEAD + 2 * LONGEST + at] = ahead[at], -1
    for at in range(count):
        one[_HEAD + ahead.size + at], one[_HEAD + 2 * LONGEST + ahead.size + at] = tokens[at], cells[at]
