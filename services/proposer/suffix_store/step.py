"""The one compiled call of a step: every text of a batch is learned, joins its own automaton, and is guessed behind.

First all write what others may learn, then all write their own text, then all guess: so everyone reads what is newest.
What one call may take is bounded, the shortest wait least. Where memory has to grow, or a store begins anew, the call
ends with a STATUS, Python does it, and calls again: what was done is done, positions stand in the rows. Knows
addresses and ints; knowledge.py lays them out.
"""

from __future__ import annotations

import numpy as np

from services.proposer.suffix_store import candidates, segment_loops
from services.proposer.suffix_store.chances import CHANCE, CORPUS, NGRAM, OWN, PREDICTION, SHARED, STORE
from services.proposer.suffix_store.guessing import (
    DRAFTED,
    MATCHED,
    expected,
    most_frequent,
    most_frequent_of_few,
)
from services.proposer.suffix_store.layout import (
    ANSWER_WORDS,
    ASK_AHEADS,
    ASK_BUDGET,
    ASK_LENGTH,
    ASK_ROW,
    ASK_TEXT_AT,
    CALIBRATED,
    CANDIDATES_AT,
    CHANCES_OUT_AT,
    DRAFT_AT,
    FREQUENT,
    JOINED,
    LATER,
    LEAST_NGRAM,
    LIMIT,
    LONGEST,
    NEW_AT,
    NEW_READER,
    OLD_AT,
    OLD_READER,
    ONLY,
    OWN_FOLLOWER,
    PREDICTION_AT,
    RATIOS_AT,
    ROW_NEEDS_MEMORY,
    ROWS_AT,
    SPACE,
    SPACES_AT,
    TOKENS_OUT_AT,
    TOLD_AT,
    TOLD_COUNT,
    TOLD_MATCHED,
    TOLD_SOURCE,
    TOLD_WHICH,
    answer_table,
    ask_table,
    row_table,
    space_table,
)
from services.proposer.suffix_store.loops import AUTOMATON, opened
from services.proposer.suffix_store.native import (
    Doubles,
    Ints,
    Longs,
    Table,
    carray,
    doubles,
    ints,
    ints_at,
    kept,
    longs,
    longs_at,
    loop,
    part,
)
from services.proposer.suffix_store.sources import (
    PLAIN,
    behind,
    catch_up,
    cell_of_prediction,
    chances_of,
    context_of,
    predicted,
    recent,
    segments_of,
)
from services.proposer.suffix_store.taking_in import ends, join, learn
from services.proposer.suffix_store.together import together


@loop
def _offer(
    control: Longs, best: float, score: float, source: int, which: int, told: Longs, answer: Ints, tokens_out: Ints,
    chances_out: Doubles,
) -> float:  # fmt: skip
    """The guess that lies in the scratch is kept if it is the best so far. That score."""
    count = told[DRAFTED]
    if not count or score <= best:
        return best
    draft = ints(control[DRAFT_AT])
    ratios = doubles(control[RATIOS_AT])
    answer[TOLD_COUNT], answer[TOLD_SOURCE], answer[TOLD_MATCHED] = count, source, told[MATCHED]
    answer[TOLD_WHICH] = which
    for at in range(count):
        tokens_out[at], chances_out[at] = draft[at], ratios[at]
    return score


@loop
def _guess(
    control: Longs, row: Longs, text: Ints, ahead: Ints, longest: int, sources: int, factor: float, offset: float,
    least: float, answer: Ints, tokens_out: Ints, chances_out: Doubles,
) -> None:  # fmt: skip
    """Every source that is asked for guesses; the best guess is the answer."""
    draft = ints(control[DRAFT_AT])
    ratios = doubles(control[RATIOS_AT])
    told = longs(control[TOLD_AT])
    best = -1.0
    if sources & (1 << OWN | 1 << NGRAM):
        follower = behind(control, part(row, OWN_FOLLOWER), ahead)
        words, states, entries, buckets = opened(follower[AUTOMATON])
        if sources & 1 << OWN:
            score = most_frequent(
                words, states, entries, buckets, follower, control[LIMIT], longest, factor, offset, least, draft,
                ratios, told,
            )  # fmt: skip
            best = _offer(control, best, score, np.int64(OWN), ONLY, told, answer, tokens_out, chances_out)
        if sources & 1 << NGRAM:
            if control[FREQUENT]:
                most_frequent_of_few(
                    words, states, entries, buckets, follower, control[LEAST_NGRAM], longest, draft, ratios, told
                )
            else:
                recent(control, follower, text, ahead, longest, PLAIN)
            told[DRAFTED], score = expected(ratios, told[DRAFTED], 0.0)
            best = _offer(control, best, score, np.int64(NGRAM), ONLY, told, answer, tokens_out, chances_out)
    if sources & 1 << PREDICTION and row[PREDICTION_AT]:
        agrees, table = predicted(control, row, text, ahead, longest), chances_of(control, row)
        for at in range(told[DRAFTED]):
            ratios[at] = table[cell_of_prediction(told[MATCHED] + at, agrees), CHANCE]
        told[DRAFTED], score = expected(ratios, told[DRAFTED], 0.0)
        best = _offer(control, best, score, np.int64(PREDICTION), ONLY, told, answer, tokens_out, chances_out)
    if row[SPACE] < 0:
        return
    space = space_table(control[SPACES_AT])[row[SPACE]]
    if sources & 1 << SHARED and space[NEW_AT]:
        catch_up(row, space, text, control[LIMIT])
        for which in range(2 if space[OLD_AT] else 1):
            begin = OLD_READER if which else NEW_READER
            follower = behind(control, part(row, begin), ahead)
            words, states, entries, buckets = opened(follower[AUTOMATON])
            score = most_frequent(
                words, states, entries, buckets, follower, control[LIMIT], longest, factor, offset, least, draft,
                ratios, told,
            )  # fmt: skip
            best = _offer(control, best, score, np.int64(SHARED), ONLY, told, answer, tokens_out, chances_out)
    for source in (STORE, CORPUS):
        if not sources & 1 << source:
            continue
        addresses, context = segments_of(space, row, source), context_of(control, text, ahead)
        for which in range(addresses.size):
            segment = carray(longs_at(addresses[which]), segment_loops.SEGMENT_WORDS)
            score = segment_loops.guess(
                segment, context, context.size, longest, factor, offset, least, draft, ratios, told
            )
            best = _offer(
                control, best, score, np.int64(source), np.int64(which), told, answer, tokens_out, chances_out
            )


@loop
def _are_near(rows: Table, asks: Table, count: int) -> bool:
    """All texts have been taken in but for a few tokens."""
    for at in range(count):
        joined = rows[asks[at, ASK_ROW], JOINED]
        if not joined or asks[at, ASK_LENGTH] - joined > LONGEST:
            return False
    return True


@kept
def step(
    control_at: int, asks_at: int, count: int, aheads_at: int, sources: int, factor: float, offset: float, least: float
) -> int:
    """How many tokens are told of in all; -1: a STATUS wants something done first. 0 sources: only what is new is
    taken in. LATER is for questions with nothing ahead."""
    control = longs(control_at)
    rows, asks = row_table(control[ROWS_AT]), ask_table(asks_at)
    later = sources & LATER and _are_near(rows, asks, count)
    if not later and (not learn(control, rows, asks, count) or not join(control, rows, asks, count)):
        return -1
    if sources & CALIBRATED:
        for at in range(count):
            if not rows[asks[at, ASK_ROW], CANDIDATES_AT]:
                ends(control, ROW_NEEDS_MEMORY, asks[at, ASK_ROW])
                return -1
    answers, chances_out = answer_table(control[TOKENS_OUT_AT]), doubles(control[CHANCES_OUT_AT])
    tokens_out = ints(control[TOKENS_OUT_AT] + 4 * count * ANSWER_WORDS)
    told = 0
    for at in range(count):
        row, answer = rows[asks[at, ASK_ROW]], answers[at]
        answer[TOLD_COUNT], answer[TOLD_SOURCE] = 0, OWN
        text = carray(ints_at(asks[at, ASK_TEXT_AT]), asks[at, ASK_LENGTH])
        if sources & CALIBRATED:
            candidates.compare(
                carray(ints_at(row[CANDIDATES_AT]), candidates.TEXT_WORDS), text, chances_of(control, row)
            )
        longest = min(asks[at, ASK_BUDGET], LONGEST)
        if sources and longest > 0 and (later or row[JOINED] == text.size):
            assumed = carray(ints_at(aheads_at), asks[at, ASK_AHEADS])
            ahead = assumed
            if later:
                text, ahead = text[: row[JOINED]], text[row[JOINED] :]
            if sources & CALIBRATED:
                together(
                    control, row, text, ahead, assumed, longest, least, answer, part(tokens_out, told),
                    part(chances_out, told),
                )  # fmt: skip
            else:
                _guess(
                    control, row, text, ahead, longest, sources, factor, offset, least, answer,
                    part(tokens_out, told), part(chances_out, told),
                )  # fmt: skip
            told += answer[TOLD_COUNT]
        aheads_at += 4 * asks[at, ASK_AHEADS]
    return told
