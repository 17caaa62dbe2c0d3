"""The one compiled call of a step: the new tokens of all texts of a batch are taken in, then each text is drafted for.

First all texts are learned by their namespaces, then each is added to its own automaton, then all are drafted for, so
that all read the newest state. The tokens that one call takes in are bounded; the shortest texts go first. Where memory
has to grow or an automaton to be replaced, the call returns a STATUS, Python does it and calls again; rows keep how far
each text has been taken in. Knows addresses and ints; texts.py lays them out.
"""

from __future__ import annotations

import numpy as np

from services.proposer.fast.automaton.loops import AUTOMATON, opened
from services.proposer.fast.drafting import candidates
from services.proposer.fast.drafting.chances import CORPUS, NGRAM, OWN, PREDICTION, SHARED, STORE, rate_of
from services.proposer.fast.drafting.guessing import (
    DRAFTED,
    MATCHED,
    expected,
    most_frequent,
    most_frequent_of_few,
)
from services.proposer.fast.drafting.layout import (
    ANSWER_COUNT,
    ANSWER_MATCHED,
    ANSWER_SOURCE,
    ANSWER_WHICH,
    ANSWER_WORDS,
    CALIBRATED,
    CANDIDATES_AT,
    CHANCES_OUT_AT,
    DRAFT_AT,
    FREQUENT,
    JOINED,
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
    REQUEST_AHEADS,
    REQUEST_BUDGET,
    REQUEST_LENGTH,
    REQUEST_ROW,
    REQUEST_TEXT_AT,
    RESULT_AT,
    ROW_NEEDS_MEMORY,
    ROWS_AT,
    SPACE,
    SPACES_AT,
    TOKENS_OUT_AT,
    answer_table,
    request_table,
    row_table,
    space_table,
)
from services.proposer.fast.drafting.sources import (
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
from services.proposer.fast.drafting.taking_in import ends, join, learn
from services.proposer.fast.drafting.together import together
from services.proposer.fast.native import (
    Doubles,
    Ints,
    Longs,
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
from services.proposer.fast.segments import loops as segment_loops


@loop
def _offer(
    control: Longs, best: float, score: float, source: int, which: int, result: Longs, answer: Ints, tokens_out: Ints,
    chances_out: Doubles,
) -> float:  # fmt: skip
    """Keeps the draft in the scratch memory if its score is the best so far; returns the best score."""
    count = result[DRAFTED]
    if not count or score <= best:
        return best
    draft = ints(control[DRAFT_AT])
    ratios = doubles(control[RATIOS_AT])
    answer[ANSWER_COUNT], answer[ANSWER_SOURCE], answer[ANSWER_MATCHED] = count, source, result[MATCHED]
    answer[ANSWER_WHICH] = which
    for at in range(count):
        tokens_out[at], chances_out[at] = draft[at], ratios[at]
    return score


@loop
def _guess(
    control: Longs, row: Longs, text: Ints, ahead: Ints, longest: int, sources: int, factor: float, offset: float,
    least: float, answer: Ints, tokens_out: Ints, chances_out: Doubles,
) -> None:  # fmt: skip
    """Each of `sources` drafts; the draft with the best score is the answer."""
    draft = ints(control[DRAFT_AT])
    ratios = doubles(control[RATIOS_AT])
    result = longs(control[RESULT_AT])
    best = -1.0
    if sources & (1 << OWN | 1 << NGRAM):
        follower = behind(control, part(row, OWN_FOLLOWER), ahead)
        words, states, entries, buckets = opened(follower[AUTOMATON])
        if sources & 1 << OWN:
            score = most_frequent(
                words, states, entries, buckets, follower, control[LIMIT], longest, factor, offset, least, draft,
                ratios, result,
            )  # fmt: skip
            best = _offer(control, best, score, np.int64(OWN), ONLY, result, answer, tokens_out, chances_out)
        if sources & 1 << NGRAM:
            if control[FREQUENT]:
                most_frequent_of_few(
                    words, states, entries, buckets, follower, control[LEAST_NGRAM], longest, draft, ratios, result
                )
            else:
                recent(control, follower, text, ahead, longest, PLAIN)
            result[DRAFTED], score = expected(ratios, result[DRAFTED], 0.0)
            best = _offer(control, best, score, np.int64(NGRAM), ONLY, result, answer, tokens_out, chances_out)
    if sources & 1 << PREDICTION and row[PREDICTION_AT]:
        agrees, table = predicted(control, row, text, ahead, longest), chances_of(row)
        for at in range(result[DRAFTED]):
            ratios[at] = rate_of(table, cell_of_prediction(result[MATCHED] + at, agrees))
        result[DRAFTED], score = expected(ratios, result[DRAFTED], 0.0)
        best = _offer(control, best, score, np.int64(PREDICTION), ONLY, result, answer, tokens_out, chances_out)
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
                ratios, result,
            )  # fmt: skip
            best = _offer(control, best, score, np.int64(SHARED), ONLY, result, answer, tokens_out, chances_out)
    for source in (STORE, CORPUS):
        if not sources & 1 << source:
            continue
        addresses, context = segments_of(space, row, source), context_of(control, text, ahead)
        for which in range(addresses.size):
            segment = carray(longs_at(addresses[which]), segment_loops.SEGMENT_WORDS)
            score = segment_loops.guess(
                segment, context, context.size, longest, factor, offset, least, draft, ratios, result
            )
            best = _offer(
                control, best, score, np.int64(source), np.int64(which), result, answer, tokens_out, chances_out
            )


@kept
def step(
    control_at: int, requests_at: int, count: int, aheads_at: int, sources: int, factor: float, offset: float,
    least: float,
) -> int:  # fmt: skip
    """Tokens of all drafts together; -1: a STATUS wants something done first. 0 sources: only new tokens are taken in,
    no drafts are made."""
    control = longs(control_at)
    rows, requests = row_table(control[ROWS_AT]), request_table(requests_at)
    if not learn(control, rows, requests, count) or not join(control, rows, requests, count):
        return -1
    if sources & CALIBRATED:
        for at in range(count):
            if not rows[requests[at, REQUEST_ROW], CANDIDATES_AT]:
                ends(control, ROW_NEEDS_MEMORY, requests[at, REQUEST_ROW])
                return -1
    answers, chances_out = answer_table(control[TOKENS_OUT_AT]), doubles(control[CHANCES_OUT_AT])
    tokens_out = ints(control[TOKENS_OUT_AT] + 4 * count * ANSWER_WORDS)
    drafted = 0
    for at in range(count):
        row, answer = rows[requests[at, REQUEST_ROW]], answers[at]
        answer[ANSWER_COUNT], answer[ANSWER_SOURCE] = 0, OWN
        text = carray(ints_at(requests[at, REQUEST_TEXT_AT]), requests[at, REQUEST_LENGTH])
        if sources & CALIBRATED:
            candidates.compare(
                carray(ints_at(row[CANDIDATES_AT]), candidates.TEXT_WORDS), text, chances_of(row)
            )
        longest = min(requests[at, REQUEST_BUDGET], LONGEST)
        if sources and longest > 0 and row[JOINED] == text.size:
            ahead = carray(ints_at(aheads_at), requests[at, REQUEST_AHEADS])
            if sources & CALIBRATED:
                together(
                    control, row, text, ahead, longest, least, answer, part(tokens_out, drafted),
                    part(chances_out, drafted),
                )  # fmt: skip
            else:
                _guess(
                    control, row, text, ahead, longest, sources, factor, offset, least, answer,
                    part(tokens_out, drafted), part(chances_out, drafted),
                )  # fmt: skip
            drafted += answer[ANSWER_COUNT]
        aheads_at += 4 * requests[at, REQUEST_AHEADS]
    return drafted
