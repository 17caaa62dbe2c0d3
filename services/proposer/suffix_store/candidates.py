"""What every source said of each token of a draft, until the text has gone on and it is known who was right. Compiled
into the one call of step.py.

A text has two records: that of the draft made while another is verified, behind that one, and that of the one before.
Tokens that a draft was made behind are part of it, and nobody said them: they are only waited for. A record counts up
to the draft's first wrong token, and that one, too; not at all where the text hasn't come to it. Who asks the same once
more, or rehearses, changes nothing: what was said first counts.
"""

from __future__ import annotations

from services.proposer.suffix_store.chances import seen
from services.proposer.suffix_store.native import Floats, Ints, loop

LONGEST = 64
# A record's words: behind how much text it was made and how many tokens ahead of it, how many tokens it has, how many
# of them are compared with the text, and how many sources there were.
MADE_AT, AHEAD, COUNT, COMPARED, SPEAKERS = range(5)
HEAD = 5
# Then for each token what it is, three cells of the draft's chance, and for each source its own token and cell.
MOST_SPEAKERS = 7
SAID_WORDS = 4 + 2 * MOST_SPEAKERS
RECORD_WORDS = HEAD + LONGEST * SAID_WORDS
# Records of a text, and behind them which of the two is the later one.
TEXT_WORDS = 2 * RECORD_WORDS + 1


@loop
def compare(records: Ints, text: Ints, table: Floats) -> None:
    """With what the text has become."""
    for which in range(2):
        one = records[which * RECORD_WORDS : (which + 1) * RECORD_WORDS]
        while one[COMPARED] < one[COUNT] and one[MADE_AT] + one[COMPARED] < text.size:
            at, token = one[COMPARED], text[one[MADE_AT] + one[COMPARED]]
            one[COMPARED] += 1
            said = one[HEAD + at * SAID_WORDS : HEAD + (at + 1) * SAID_WORDS]
            if at >= one[AHEAD]:
                for word in range(1, 4):
                    seen(table, said[word], said[0] == token)
                for word in range(4, 4 + 2 * one[SPEAKERS], 2):
                    if said[word + 1] >= 0:
                        seen(table, said[word + 1], said[word] == token)
            if said[0] != token:
                one[COUNT] = 0


@loop
def begun(records: Ints, spare: Ints, made_at: int, ahead: Ints, speakers: int) -> Ints:
    """An empty record, in the place of the earlier of the two; the spare one, which nobody looks at, where there is one
    for the same already."""
    later = records[2 * RECORD_WORDS : 2 * RECORD_WORDS + 1]
    begin = later[0] * RECORD_WORDS
    if records[begin + MADE_AT] == made_at and records[begin + AHEAD] == ahead.size and records[begin + SPEAKERS]:
        one = spare
    else:
        later[0] = 1 - later[0]
        begin = later[0] * RECORD_WORDS
        one = records[begin : begin + RECORD_WORDS]
    one[MADE_AT], one[AHEAD], one[COMPARED], one[COUNT], one[SPEAKERS] = made_at, ahead.size, 0, 0, speakers
    for at in range(min(LONGEST, ahead.size)):
        one[HEAD + at * SAID_WORDS] = ahead[at]
    return one
