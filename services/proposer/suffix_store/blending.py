"""A draft of all sources together, a token at a time: each says what comes next, the likeliest is taken, and all go on
from there. Compiled into the one call of step.py; knows nothing of whose texts they are.

A source is an automaton, which is asked again behind every token, or a line: a guess made beforehand, which counts as
long as the draft agrees with it.

    own text      x y . .          x .8, behind it y .4
    namespace     x z w .          x .6, behind it z .7, behind that w .9      the draft   x z w
    last place    x y u v          x .7, behind it y .5; then it is left

What others say of a token is told by how they said it: the chance of one that a second source expects, too, is not
that of one which contradicts it (chances.py).
"""

from __future__ import annotations

import numpy as np

from services.proposer.suffix_store.candidates import COUNT as RECORDED
from services.proposer.suffix_store.candidates import HEAD, LONGEST, MOST_SPEAKERS, SAID_WORDS
from services.proposer.suffix_store.chances import (
    CHANCE,
    cell_of,
    cell_of_last,
    cell_of_token,
    cell_of_views,
    corrected,
    counted,
)
from services.proposer.suffix_store.loops import (
    AUTOMATON,
    BEST_COUNT,
    BEST_TOKEN,
    COUNT,
    FOLLOWER_WORDS,
    LEN,
    LENGTH,
    STATE,
    link_of,
    opened,
    read,
    shortened,
)
from services.proposer.suffix_store.native import Doubles, Floats, Ints, Longs, ints, loop, part

# A source's words: who it is, how long its first context was; then what it says of the next token: CELL -1: nothing.
# ITSELF: of its context's occurrences, those nothing can follow. LINE: how long its line is, AUTOMATA for those that
# are asked each time; LINE_AT: where that lies, tokens first, then cells. LED: tokens it was the surest of.
SOURCE, WHICH, MATCHED, SAYS, CELL, ITSELF, LINE, LINE_AT, LED = range(9)
FOLLOWER = np.int64(9)
SPEAKER_WORDS = 9 + FOLLOWER_WORDS
LINE_OF_AUTOMATA = -1
# The request's own automaton and its namespace's two; the last place, a prediction, and the best segment of two kinds.
SPEAKERS, LINES = MOST_SPEAKERS, 4
# Of an automaton's contexts so many are asked, the longest first; a shorter one has to be so much surer.
_CONTEXTS, _SURER = 2, 1.1


@loop
def _asks_automaton(speaker: Longs, table: Floats, limit: int) -> None:
    follower = part(speaker, FOLLOWER)
    _, rows, _, _ = opened(follower[AUTOMATON])
    length = min(follower[LENGTH], limit)
    state = shortened(rows, follower[STATE], length)
    speaker[CELL] = -1
    surest, asked = 0.0, 0
    while state and asked < _CONTEXTS:
        if rows[state, BEST_COUNT]:
            share = counted(rows[state, BEST_COUNT], rows[state, COUNT] - speaker[ITSELF])
            cell = cell_of(speaker[SOURCE], length, share)
            if table[cell, CHANCE] > surest:
                speaker[SAYS], speaker[CELL] = rows[state, BEST_TOKEN], cell
                surest = table[cell, CHANCE] * _SURER
            asked += 1
        state = link_of(rows, state)
        length = rows[state, LEN]
    speaker[ITSELF] = 0


@loop
def _asks(speaker: Longs, table: Floats, limit: int, at: int) -> None:
    """What it says of the draft's token number `at`."""
    if speaker[LINE] == LINE_OF_AUTOMATA:
        _asks_automaton(speaker, table, limit)
    elif at < speaker[LINE]:
        line = ints(speaker[LINE_AT])
        speaker[SAYS], speaker[CELL] = line[at], line[LONGEST + at]
    else:
        speaker[CELL] = -1


@loop
def _hears(speaker: Longs, token: int) -> None:
    """The draft goes on so."""
    if speaker[LINE] == LINE_OF_AUTOMATA:
        follower = part(speaker, FOLLOWER)
        words, rows, entries, buckets = opened(follower[AUTOMATON])
        read(words, rows, entries, buckets, follower, token)
    elif speaker[CELL] >= 0 and speaker[SAYS] != token:
        speaker[LINE] = 0


@loop
def _views(speakers: Longs, count: int, table: Floats) -> tuple[int, float, float, float]:
    """(the surest, -1: nobody says anything; how sure it is, and how sure others are of the same, and of something
    else)"""
    first, surest, same, other = -1, 0.0, 0.0, 0.0
    for which in range(count):
        cell = speakers[which, CELL]
        if cell >= 0 and table[cell, CHANCE] > surest:
            first, surest = which, table[cell, CHANCE]
    for which in range(count):
        cell = speakers[which, CELL]
        if cell >= 0 and which != first:
            if speakers[which, SAYS] == speakers[first, SAYS]:
                same = max(same, table[cell, CHANCE])
            else:
                other = max(other, table[cell, CHANCE])
    return first, surest, same, other


@loop
def blend(
    speakers: Longs, count: int, table: Floats, limit: int, longest: int, least: float, last: int, record: Ints,
    place: int, tokens: Ints, chances: Doubles,
) -> int:  # fmt: skip
    """How many tokens: as long as all of them stand with a chance of at least `least`. `last` stands before them.
    What was said of each goes into the record, from `place` on; also of the one that wasn't likely enough: else
    nobody would learn when that changes."""
    drafted, probability = 0, 1.0
    while drafted < longest:
        for which in range(count):
            _asks(speakers[which], table, limit, drafted)
        first, surest, same, other = _views(speakers, count, table)
        if first < 0:
            break
        token = speakers[first, SAYS]
        by_views = cell_of_views(surest, same, other)
        chance = table[by_views, CHANCE]
        by_token = cell_of_token(token, chance)
        chance = corrected(table, by_token, chance)
        by_last = cell_of_last(last, chance)
        chance = corrected(table, by_last, chance)
        if place + drafted < LONGEST:
            said = record[HEAD + (place + drafted) * SAID_WORDS : HEAD + (place + drafted + 1) * SAID_WORDS]
            said[0], said[1], said[2], said[3] = token, by_views, by_token, by_last
            for which in range(count):
                said[4 + 2 * which], said[5 + 2 * which] = speakers[which, SAYS], speakers[which, CELL]
            record[RECORDED] = place + drafted + 1
        probability *= chance
        if probability < least:
            return drafted
        tokens[drafted], chances[drafted], last = token, chance, token
        speakers[first, LED] += 1
        drafted += 1
        if drafted < longest:
            for which in range(count):
                _hears(speakers[which], token)
    return drafted
