"""What every source predicted for each token of a draft, kept until the text has gone on and shows which were right.
Compiled into step.py.

A text has two records: of the last draft, and of the one before, behind which it may have been made. The tokens ahead
of a draft are part of its record, and no source predicted them: they are only compared. A record counts up to and
including the draft's first wrong token, and not at all before the text reaches it. A second request for the same place
changes nothing: the first predictions count.
"""

from __future__ import annotations

from services.proposer.fast.drafting.chances import seen
from services.proposer.fast.native import Doubles, Ints, loop

LONGEST = 64
# A record's words: the text's length when it was made, the tokens ahead, its tokens, how many of them have been
# compared with the text, and the number of sources.
MADE_AT, AHEAD, COUNT, COMPARED, PREDICTORS = range(5)
HEAD = 5
# Then for each token: the token, the three cells of its rate, and for each source its token and cell.
MAX_PREDICTORS = 7
TOKEN_WORDS = 4 + 2 * MAX_PREDICTORS
RECORD_WORDS = HEAD + LONGEST * TOKEN_WORDS
# The records of a text, and behind them which of the two is the later one.
TEXT_WORDS = 2 * RECORD_WORDS + 1


@loop
def compare(records: Ints, text: Ints, table: Doubles) -> None:
    """Compares the records with the text, the earlier one first, and updates the rates."""
    later = records[2 * RECORD_WORDS]
    for turn in range(2):
        which = later if turn else 1 - later
        one = records[which * RECORD_WORDS : (which + 1) * RECORD_WORDS]
        while one[COMPARED] < one[COUNT] and one[MADE_AT] + one[COMPARED] < text.size:
            at, token = one[COMPARED], text[one[MADE_AT] + one[COMPARED]]
            one[COMPARED] += 1
            entry = one[HEAD + at * TOKEN_WORDS : HEAD + (at + 1) * TOKEN_WORDS]
            if at >= one[AHEAD]:
                for word in range(1, 4):
                    seen(table, entry[word], entry[0] == token)
                for word in range(4, 4 + 2 * one[PREDICTORS], 2):
                    if entry[word + 1] >= 0:
                        seen(table, entry[word + 1], entry[word] == token)
            if entry[0] != token:
                one[COUNT] = 0


@loop
def begun(records: Ints, spare: Ints, made_at: int, ahead: Ints, predictors: int) -> Ints:
    """An empty record in the place of the earlier of the two; the spare one, which is never read, where there is a
    record of the same place already."""
    later = records[2 * RECORD_WORDS : 2 * RECORD_WORDS + 1]
    begin = (1 - later[0]) * RECORD_WORDS
    one = records[begin : begin + RECORD_WORDS]
    for at in range(0, 2 * RECORD_WORDS, RECORD_WORDS):
        if records[at + MADE_AT] == made_at and records[at + AHEAD] == ahead.size and records[at + PREDICTORS]:
            one = spare
            break
    else:
        later[0] = 1 - later[0]
    one[MADE_AT], one[AHEAD], one[COMPARED], one[COUNT], one[PREDICTORS] = made_at, ahead.size, 0, 0, predictors
    for at in range(min(LONGEST, ahead.size)):
        one[HEAD + at * TOKEN_WORDS] = ahead[at]
    return one
