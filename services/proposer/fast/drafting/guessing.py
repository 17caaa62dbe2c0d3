"""Drafts from an automaton: what followed a follower's contexts most often, or at their last occurrence. Compiled into
step.py; knows nothing of whose text it is.

A draft is tokens with a share each: how often the token followed its context, of all the context's occurrences.
"""

from __future__ import annotations

import numpy as np

from services.proposer.fast.automaton.loops import (
    BEFORE,
    BEFORE_LENGTH,
    BEST_COUNT,
    BEST_TOKEN,
    COUNT,
    DEPTH,
    END,
    LEN,
    LENGTH,
    LOOKED_UP,
    READER,
    STATE,
    TOKENS,
    lasts_of,
    link_of,
    shortened,
    target_of,
)
from services.proposer.fast.drafting.candidates import LONGEST
from services.proposer.fast.drafting.chances import counted
from services.proposer.fast.native import Doubles, Ints, Longs, Table, loop, part

# Words about a draft: its tokens, and the length of its context.
DRAFTED, MATCHED = 1, 2
RESULT_WORDS = 3
# A score this close to the best may be the best: the bound isn't rounded as the sum is.
_NEARLY = 1 - 1e-9


@loop
def _walk(
    words: Longs, rows: Table, entries: Table, buckets: Table, state: int, length: int, limit: int, budget: int,
    least: float, enough: float, tokens: Ints, shares: Doubles,
) -> tuple[int, float]:  # fmt: skip
    """(tokens, score) of the most frequent tokens behind the context, as long as their probability is at least
    `least`, and as long as the score may still become `enough`. Beyond `limit` the context is its own last `limit`
    tokens."""
    drafted, score, probability = 0, 0.0, 1.0
    while drafted < budget and rows[state, BEST_COUNT]:
        share = rows[state, BEST_COUNT] / rows[state, COUNT]
        probability *= share
        if probability < least or score + probability * (budget - drafted) < enough:
            break
        token = rows[state, BEST_TOKEN]
        tokens[drafted], shares[drafted] = token, share
        drafted += 1
        score += probability
        state = target_of(words, rows, entries, buckets, state, token)
        if length + drafted > limit:
            state = shortened(rows, state, limit)
    return drafted, score


@loop
def most_frequent(
    words: Longs, rows: Table, entries: Table, buckets: Table, follower: Longs, limit: int, longest: int, factor: float,
    offset: float, least: float, tokens: Ints, shares: Doubles, result: Longs,
) -> float:  # fmt: skip
    """The best draft of all contexts of up to `limit` tokens that the follower's context ends with. `tokens` and
    `shares` have room for two drafts: the best and one that may become the best.

    Contexts of one state have been followed by the same tokens as often: the longest of them has the largest budget,
    and so the best score. That leaves one context a state. No draft's score is above its length times its first
    token's probability, and budgets shrink with the context: that bounds what has to be looked at.
    """
    length = min(follower[LENGTH], limit)
    state = shortened(rows, follower[STATE], length)
    best_length, best_drafted, best = 0, 0, 0.0
    # Where the best draft is, and where the next one goes.
    begin, other = np.int64(0), np.int64(0)
    while state:
        budget, enough = min(longest, int(length * factor + offset + 1e-6)), best * _NEARLY
        if budget <= best:
            break
        first = rows[state, BEST_COUNT] / rows[state, COUNT]
        if first >= least and first * budget > enough:
            drafted, score = _walk(
                words, rows, entries, buckets, state, length, limit, budget, least, enough, part(tokens, other),
                part(shares, other),
            )  # fmt: skip
            if score > best:
                best, best_length, best_drafted = score, length, drafted
                begin, other = other, LONGEST - other
        state = link_of(rows, state)
        length = rows[state, LEN]
    if begin:
        for at in range(best_drafted):
            tokens[at], shares[at] = tokens[begin + at], shares[begin + at]
    result[DRAFTED], result[MATCHED] = best_drafted, best_length
    return best


@loop
def _place_before(words: Longs, rows: Table, follower: Longs) -> tuple[int, int]:
    """(the place behind the last earlier occurrence of the follower's last tokens, how many of them); length 0: none.
    The writer's own occurrence is the last one, so it has kept the one before that."""
    if follower[END] != READER:
        return follower[BEFORE], follower[BEFORE_LENGTH]
    length = min(follower[LENGTH], words[LOOKED_UP])
    state = shortened(rows, follower[STATE], length)
    return (lasts_of(words)[state], length) if state else (0, 0)


@loop
def most_recent(
    words: Longs, rows: Table, entries: Table, buckets: Table, follower: Longs, least_size: int, longest: int,
    text: Ints, ahead: Ints, counts: bool, tokens: Ints, shares: Doubles, result: Longs,
) -> None:  # fmt: skip
    """What came behind the last earlier occurrence of the text's last few tokens. At the end it goes on with its own
    guess: a match that near to the end is a text that repeats itself, and the repetition goes on. `counts`:
    shares are those that chances are learned by.

        text  x y z x y z        the place is the second x  ->  x y z x y
                    ^
    """
    place, size = _place_before(words, rows, follower)
    result[DRAFTED], result[MATCHED] = 0, size
    if not size or size < least_size:
        return
    result[DRAFTED] = longest
    period = text.size + ahead.size - place
    state, length = shortened(rows, follower[STATE], size), size
    itself = 0 if follower[END] == READER else 1
    for at in range(longest):
        if at >= period:
            token = tokens[at - period]
        elif place + at < text.size:
            token = text[place + at]
        else:
            token = ahead[place + at - text.size]
        target = target_of(words, rows, entries, buckets, state, token)
        while state and not target:
            state = link_of(rows, state)
            length = rows[state, LEN]
            target = target_of(words, rows, entries, buckets, state, token)
        times = rows[state, COUNT] if state else words[TOKENS]
        share = rows[target, COUNT] / times if target else 0.0
        if counts:
            share = counted(rows[target, COUNT], times - itself) if target else 0.0
            itself = 0
        tokens[at], shares[at] = token, share
        length = min(length + 1, words[DEPTH]) if target else 0
        state = shortened(rows, target, length)


@loop
def most_frequent_of_few(
    words: Longs, rows: Table, entries: Table, buckets: Table, follower: Longs, least_size: int, longest: int,
    tokens: Ints, shares: Doubles, result: Longs,
) -> None:  # fmt: skip
    """What most often followed the longest earlier occurrence of the text's last few tokens, however rarely."""
    length = min(follower[LENGTH], words[LOOKED_UP])
    state = shortened(rows, follower[STATE], length)
    while state and not rows[state, BEST_COUNT]:
        state = link_of(rows, state)
        length = rows[state, LEN]
    result[DRAFTED], result[MATCHED] = 0, length
    if state and length >= least_size:
        result[DRAFTED], _ = _walk(
            words, rows, entries, buckets, state, length, words[LOOKED_UP], longest, 0.0, 0.0, tokens, shares
        )


@loop
def expected(shares: Doubles, drafted: int, least: float) -> tuple[int, float]:
    """(tokens until they become less probable than `least`, how many of them are expected to be accepted)"""
    score, probability = 0.0, 1.0
    for at in range(drafted):
        probability *= shares[at]
        if probability < least:
            return at, score
        score += probability
    return drafted, score
