"""A draft of all sources together, token by token: each source predicts the next token, the likeliest is taken, and all
go on behind it. Compiled into step.py; knows nothing of whose texts they are.

A source is an automaton, which is asked again behind every token, or a line: a draft made beforehand, which counts as
long as the blended draft agrees with it.

    own text      x y . .          x .8, behind it y .4
    namespace     x z w .          x .6, behind it z .7, behind that w .9      the draft   x z w
    last place    x y u v          x .7, behind it y .5; then it is left

The rate of a token depends on whether other sources predict it, too, or another one (chances.py).
"""

from __future__ import annotations

import numpy as np

from services.proposer.fast.automaton.loops import (
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
from services.proposer.fast.drafting.candidates import COUNT as RECORDED
from services.proposer.fast.drafting.candidates import HEAD, LONGEST, MAX_PREDICTORS, TOKEN_WORDS
from services.proposer.fast.drafting.chances import (
    cell_of,
    cell_of_agreement,
    cell_of_last,
    cell_of_token,
    corrected,
    counted,
    rate_of,
)
from services.proposer.fast.native import Doubles, Ints, Longs, ints, loop, part

# A source's words: its number, the length of its first context; the token it predicts next, CELL -1: none. ITSELF:
# occurrences of its context that nothing can follow. LINE: the length of its line, LINE_OF_AUTOMATA for automata;
# LINE_AT: its address, tokens first, then cells. LED: tokens that it was the surest of.
SOURCE, WHICH, MATCHED, PREDICTS, CELL, ITSELF, LINE, LINE_AT, LED = range(9)
FOLLOWER = np.int64(9)
PREDICTOR_WORDS = 9 + FOLLOWER_WORDS
LINE_OF_AUTOMATA = -1
# The request's own automaton and its namespace's two; the last place, a prediction, and the best segment of two kinds.
PREDICTORS, LINES = MAX_PREDICTORS, 4
# Contexts of an automaton that are asked, the longest first; a shorter one has to be surer by this factor.
_CONTEXTS, _SURER = 2, 1.1


@loop
def _predict_by_automaton(predictor: Longs, table: Doubles, limit: int) -> None:
    follower = part(predictor, FOLLOWER)
    _, rows, _, _ = opened(follower[AUTOMATON])
    length = min(follower[LENGTH], limit)
    state = shortened(rows, follower[STATE], length)
    predictor[CELL] = -1
    surest, asked = 0.0, 0
    while state and asked < _CONTEXTS:
        if rows[state, BEST_COUNT]:
            share = counted(rows[state, BEST_COUNT], rows[state, COUNT] - predictor[ITSELF])
            cell = cell_of(predictor[SOURCE], length, share)
            if rate_of(table, cell) > surest:
                predictor[PREDICTS], predictor[CELL] = rows[state, BEST_TOKEN], cell
                surest = rate_of(table, cell) * _SURER
            asked += 1
        state = link_of(rows, state)
        length = rows[state, LEN]
    predictor[ITSELF] = 0


@loop
def _predict(predictor: Longs, table: Doubles, limit: int, at: int) -> None:
    """What the source predicts for token number `at` of the draft."""
    if predictor[LINE] == LINE_OF_AUTOMATA:
        _predict_by_automaton(predictor, table, limit)
    elif at < predictor[LINE]:
        line = ints(predictor[LINE_AT])
        predictor[PREDICTS], predictor[CELL] = line[at], line[LONGEST + at]
    else:
        predictor[CELL] = -1


@loop
def _advance(predictor: Longs, token: int) -> None:
    """The draft goes on with this token."""
    if predictor[LINE] == LINE_OF_AUTOMATA:
        follower = part(predictor, FOLLOWER)
        words, rows, entries, buckets = opened(follower[AUTOMATON])
        read(words, rows, entries, buckets, follower, token)
    elif predictor[CELL] >= 0 and predictor[PREDICTS] != token:
        predictor[LINE] = 0


@loop
def _agreement(predictors: Longs, count: int, table: Doubles) -> tuple[int, float, float, float]:
    """(the surest source, -1: none; its rate; the highest rate of others for the same token; and for another)"""
    first, surest, same, other = -1, 0.0, 0.0, 0.0
    for which in range(count):
        cell = predictors[which, CELL]
        if cell >= 0 and rate_of(table, cell) > surest:
            first, surest = which, rate_of(table, cell)
    for which in range(count):
        cell = predictors[which, CELL]
        if cell >= 0 and which != first:
            if predictors[which, PREDICTS] == predictors[first, PREDICTS]:
                same = max(same, rate_of(table, cell))
            else:
                other = max(other, rate_of(table, cell))
    return first, surest, same, other


@loop
def blend(
    predictors: Longs, count: int, table: Doubles, limit: int, longest: int, least: float, last: int, record: Ints,
    place: int, tokens: Ints, chances: Doubles,
) -> int:  # fmt: skip
    """The number of tokens: as long as all are accepted with a probability of at least `least`. `last` is the token
    before them. All predictions go into the record, from `place` on; also those of the token that wasn't likely enough,
    or its rate would never change."""
    drafted, probability = 0, 1.0
    while drafted < longest:
        for which in range(count):
            _predict(predictors[which], table, limit, drafted)
        first, surest, same, other = _agreement(predictors, count, table)
        if first < 0:
            break
        token = predictors[first, PREDICTS]
        by_agreement = cell_of_agreement(surest, same, other)
        chance = rate_of(table, by_agreement)
        by_token = cell_of_token(token, chance)
        chance = corrected(table, by_token, chance)
        by_last = cell_of_last(last, chance)
        chance = corrected(table, by_last, chance)
        if place + drafted < LONGEST:
            entry = record[HEAD + (place + drafted) * TOKEN_WORDS : HEAD + (place + drafted + 1) * TOKEN_WORDS]
            entry[0], entry[1], entry[2], entry[3] = token, by_agreement, by_token, by_last
            for which in range(count):
                entry[4 + 2 * which], entry[5 + 2 * which] = predictors[which, PREDICTS], predictors[which, CELL]
            record[RECORDED] = place + drafted + 1
        probability *= chance
        if probability < least:
            return drafted
        tokens[drafted], chances[drafted], last = token, chance, token
        predictors[first, LED] += 1
        drafted += 1
        if drafted < longest:
            for which in range(count):
                _advance(predictors[which], token)
    return drafted
