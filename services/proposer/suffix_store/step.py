"""The one compiled call of a step: every text of a batch is learned, joins its own automaton, and is guessed behind.

First all write what others may learn, then all write their own text, then all guess: so everyone reads what is newest.
What one call may take is bounded, the shortest wait least. Where memory has to grow, or a store begins anew, the call
ends with a STATUS, Python does it, and calls again: what was done is done, positions stand in the rows. Knows
addresses and ints; knowledge.py lays them out.
"""

from __future__ import annotations

import numpy as np

from services.proposer.suffix_store import candidates, predicting, segment_loops
from services.proposer.suffix_store.chances import (
    CELL_WORDS,
    CELLS,
    CHANCE,
    CORPUS,
    NGRAM,
    OWN,
    PREDICTION,
    SHARED,
    STORE,
    cell_of,
)
from services.proposer.suffix_store.guessing import (
    DRAFTED,
    MATCHED,
    TOLD_WORDS,
    expected,
    most_frequent,
    most_frequent_of_few,
    most_recent,
)
from services.proposer.suffix_store.layout import (
    ALL_OF_FOLLOWER,
    ALL_OF_PREDICTION,
    ANSWER_WORDS,
    AS_READER,
    ASK_AHEADS,
    ASK_BUDGET,
    ASK_LENGTH,
    ASK_ROW,
    ASK_TEXT_AT,
    ASK_WORDS,
    BEGIN,
    BELIEFS_AT,
    CALIBRATED,
    CANDIDATES_AT,
    CELLS_AT,
    CHANCES_AT,
    CHANCES_OUT_AT,
    CONTEXT_AT,
    COPY_AT,
    CORPORA,
    CORPORA_AT,
    DRAFT_AT,
    FREQUENT,
    JOINED,
    LEAST_NGRAM,
    LIMIT,
    LONGEST,
    NEW_AT,
    NEW_READER,
    NEW_SERIAL,
    OLD_AT,
    OLD_READER,
    OLD_SERIAL,
    ONLY,
    OWN_FOLLOWER,
    PREDICTION_AT,
    PROMPT,
    RATIOS_AT,
    READ,
    READS_NEW,
    READS_OLD,
    ROW_NEEDS_MEMORY,
    ROW_WORDS,
    ROWS,
    ROWS_AT,
    SEGMENTS,
    SEGMENTS_AT,
    SPACE,
    SPACE_WORDS,
    SPACES,
    SPACES_AT,
    TOKENS_OUT_AT,
    TOLD_AT,
    TOLD_COUNT,
    TOLD_MATCHED,
    TOLD_SOURCE,
    TOLD_WHICH,
    WORDS,
    WRITER,
    WRITES,
    WRITTEN,
)
from services.proposer.suffix_store.loops import (
    AUTOMATON,
    AUTOMATON_WORDS,
    DEPTH,
    END,
    FOLLOWER_WORDS,
    LENGTH,
    READER,
    STATE,
    opened,
    read,
)
from services.proposer.suffix_store.native import (
    Doubles,
    Floats,
    Ints,
    Longs,
    carray,
    doubles_at,
    floats_at,
    ints_at,
    kept,
    longs_at,
    loop,
)
from services.proposer.suffix_store.taking_in import ends, join, learn, starts

# Instead of a share, where a prediction has only one thing to say: whether its place is known, or only supposed.
_AGREED, _SUPPOSED = 0.95, 0.35
# Of calibrated guesses the chances decide how far they go; segments look at no more contexts than this lets them.
_SEGMENT_FACTOR = 4.0


@loop
def _copy(source: Longs, begin: int, words: int, to: Longs, at: int) -> None:
    for word in range(words):
        to[at + word] = source[begin + word]


@loop
def _reads(follower: Longs, text: Ints, begin: int) -> None:
    words, states, entries, buckets = opened(follower[AUTOMATON])
    for at in range(begin, text.size):
        read(words, states, entries, buckets, follower, text[at])


@loop
def _stands_where_it_wrote(row: Longs, space: Longs, text: Ints) -> bool:
    """All of the text's end was learned, as far back as anyone looks: there the reader would be where the writer is."""
    words = carray(longs_at(space[NEW_AT]), AUTOMATON_WORDS)
    if row[WRITES] != space[NEW_SERIAL] or row[WRITTEN] != text.size or row[WRITER + LENGTH] < words[DEPTH]:
        return False
    row[NEW_READER + STATE], row[NEW_READER + LENGTH] = row[WRITER + STATE], row[WRITER + LENGTH]
    return True


@loop
def _catch_up(row: Longs, space: Longs, text: Ints, depth: int) -> None:
    """The text's readers of its namespace's automata are brought to its end. Who comes late, or finds another
    automaton, need not read more than is ever looked at."""
    begin, late = row[READ], max(0, text.size - depth)
    new, old = row[NEW_READER : NEW_READER + FOLLOWER_WORDS], row[OLD_READER : OLD_READER + FOLLOWER_WORDS]
    if begin < late:
        row[READS_NEW] = row[READS_OLD] = 0
    if row[READS_NEW] != space[NEW_SERIAL]:
        if row[READS_NEW] == space[OLD_SERIAL]:
            row[READS_OLD] = row[READS_NEW]
            _copy(row, NEW_READER, ALL_OF_FOLLOWER, row, OLD_READER)
        row[READS_NEW] = space[NEW_SERIAL]
        starts(row, NEW_READER, space[NEW_AT], AS_READER)
        _reads(new, text, late)
    elif not _stands_where_it_wrote(row, space, text):
        _reads(new, text, begin)
    if space[OLD_AT]:
        if row[READS_OLD] != space[OLD_SERIAL]:
            row[READS_OLD] = space[OLD_SERIAL]
            starts(row, OLD_READER, space[OLD_AT], AS_READER)
            _reads(old, text, late)
        else:
            _reads(old, text, begin)
    row[READ] = text.size


@loop
def _behind(control: Longs, follower: Longs, ahead: Ints) -> Longs:
    """The follower, or its copy that has read what is ahead: nobody else hears of it."""
    if not ahead.size:
        return follower
    copy = carray(longs_at(control[COPY_AT]), FOLLOWER_WORDS)
    _copy(follower, BEGIN, ALL_OF_FOLLOWER, copy, BEGIN)
    copy[END] = READER
    _reads(copy, ahead, BEGIN)
    return copy  # type: ignore[no-any-return]


@loop
def _context(control: Longs, text: Ints, ahead: Ints) -> Ints:
    """The last tokens of the text and what is ahead of it."""
    length = min(control[LIMIT], text.size + ahead.size)
    context = carray(ints_at(control[CONTEXT_AT]), length)
    begin = text.size + ahead.size - length
    for at in range(length):
        context[at] = text[begin + at] if begin + at < text.size else ahead[begin + at - text.size]
    return context  # type: ignore[no-any-return]


@loop
def _offer(
    control: Longs, row: Longs, made_at: int, ahead: Ints, remembers: bool, best: float, score: float, source: int,
    which: int, told: Longs, answer: Ints, tokens_out: Ints, chances_out: Doubles,
) -> float:  # fmt: skip
    """The guess that lies in the scratch: it is remembered, and kept if it is the best so far. That score."""
    count = told[DRAFTED]
    draft, cells = carray(ints_at(control[DRAFT_AT]), LONGEST), carray(ints_at(control[CELLS_AT]), LONGEST)
    if remembers:
        candidate = carray(ints_at(row[CANDIDATES_AT]), candidates.TEXT_WORDS)
        candidates.remember(candidate, source, made_at, ahead, draft, cells, count)
    if not count or score <= best:
        return best
    ratios = carray(doubles_at(control[RATIOS_AT]), LONGEST)
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
    calibrated = sources & CALIBRATED != 0
    draft, cells = carray(ints_at(control[DRAFT_AT]), LONGEST), carray(ints_at(control[CELLS_AT]), LONGEST)
    ratios = carray(doubles_at(control[RATIOS_AT]), LONGEST)
    table = _table(control, row)
    told = carray(longs_at(control[TOLD_AT]), TOLD_WORDS)
    best = -1.0
    if sources & (1 << OWN | 1 << NGRAM):
        follower = _behind(control, row[OWN_FOLLOWER : OWN_FOLLOWER + FOLLOWER_WORDS], ahead)
        words, states, entries, buckets = opened(follower[AUTOMATON])
        for source in (OWN, NGRAM):
            if not sources & 1 << source:
                continue
            cell_source, score = source if calibrated else -1, 0.0
            if source == OWN:
                score = most_frequent(
                    words, states, entries, buckets, follower, control[LIMIT], longest, factor, offset, least, table,
                    cell_source, draft, ratios, cells, told,
                )  # fmt: skip
            else:
                if control[FREQUENT]:
                    most_frequent_of_few(
                        words, states, entries, buckets, follower, control[LEAST_NGRAM], longest, table, cell_source,
                        draft, ratios, cells, told,
                    )  # fmt: skip
                else:
                    most_recent(
                        words, states, entries, buckets, follower, control[LEAST_NGRAM], longest, text, ahead, table,
                        cell_source, draft, ratios, cells, told,
                    )  # fmt: skip
                told[DRAFTED], score = expected(ratios, told[DRAFTED], least if calibrated else 0.0)
            best = _offer(
                control, row, text.size, ahead, calibrated, best, score, np.int64(source), ONLY, told, answer,
                tokens_out, chances_out,
            )  # fmt: skip
    if sources & 1 << PREDICTION and row[PREDICTION_AT]:
        followed = carray(longs_at(row[PREDICTION_AT]), predicting.PREDICTION_WORDS)
        predicting.follow(followed, text, ahead[:0], row[PROMPT])
        if ahead.size:
            copy = carray(longs_at(control[COPY_AT]), predicting.PREDICTION_WORDS)
            _copy(followed, BEGIN, ALL_OF_PREDICTION, copy, BEGIN)
            followed = copy
            predicting.follow(followed, text, ahead, row[PROMPT])
        told[DRAFTED], told[MATCHED] = predicting.rest(followed, longest, draft), followed[predicting.AGREED]
        for at in range(told[DRAFTED]):
            share = _SUPPOSED if followed[predicting.LOST] else _AGREED
            cells[at] = cell_of(np.int64(PREDICTION), told[MATCHED] + at, share)
            ratios[at] = table[cells[at], CHANCE]
        told[DRAFTED], score = expected(ratios, told[DRAFTED], least if calibrated else 0.0)
        best = _offer(
            control, row, text.size, ahead, calibrated, best, score, np.int64(PREDICTION), ONLY, told, answer,
            tokens_out, chances_out,
        )  # fmt: skip
    if row[SPACE] < 0:
        return
    spaces = carray(longs_at(control[SPACES_AT]), (control[SPACES], SPACE_WORDS))
    space = spaces[row[SPACE]]
    if sources & 1 << SHARED and space[NEW_AT]:
        _catch_up(row, space, text, control[LIMIT])
        group = -1.0
        for which in range(2 if space[OLD_AT] else 1):
            begin = OLD_READER if which else NEW_READER
            follower = _behind(control, row[begin : begin + FOLLOWER_WORDS], ahead)
            words, states, entries, buckets = opened(follower[AUTOMATON])
            score = most_frequent(
                words, states, entries, buckets, follower, control[LIMIT], longest, factor, offset, least, table,
                SHARED if calibrated else -1, draft, ratios, cells, told,
            )  # fmt: skip
            best = _offer(
                control, row, text.size, ahead, calibrated and score > group, best, score, np.int64(SHARED), ONLY,
                told, answer, tokens_out, chances_out,
            )  # fmt: skip
            group = max(group, score)
    for source in (STORE, CORPUS):
        count = space[SEGMENTS] if source == STORE else row[CORPORA]
        if not sources & 1 << source or not count:
            continue
        at_each = carray(longs_at(space[SEGMENTS_AT] if source == STORE else row[CORPORA_AT]), count)
        context, group = _context(control, text, ahead), -1.0
        for which in range(count):
            segment = carray(longs_at(at_each[which]), segment_loops.SEGMENT_WORDS)
            score = segment_loops.guess(
                segment, context, context.size, longest, max(factor, _SEGMENT_FACTOR) if calibrated else factor, offset,
                least, draft, ratios, told,
            )  # fmt: skip
            if calibrated:
                for at in range(told[DRAFTED]):
                    cells[at] = cell_of(np.int64(source), told[MATCHED] + at, ratios[at])
                    ratios[at] = table[cells[at], CHANCE]
                told[DRAFTED], score = expected(ratios, told[DRAFTED], least)
            best = _offer(
                control, row, text.size, ahead, calibrated and score > group, best, score, np.int64(source),
                np.int64(which), told, answer, tokens_out, chances_out,
            )  # fmt: skip
            group = max(group, score)


@loop
def _table(control: Longs, row: Longs) -> Floats:
    """A text's chances: its namespace's, its own where it has none, what is believed where nothing was learned."""
    at = row[CHANCES_AT]
    if not at:
        at = control[BELIEFS_AT]
    return carray(floats_at(at), (CELLS, CELL_WORDS))  # type: ignore[no-any-return]


@kept
def step(
    control_at: int, asks_at: int, count: int, aheads_at: int, sources: int, factor: float, offset: float, least: float
) -> int:
    """How many tokens are told of in all; -1: a STATUS wants something done first. 0 sources: only what is new is
    taken in."""
    control = carray(longs_at(control_at), WORDS)
    rows = carray(longs_at(control[ROWS_AT]), (control[ROWS], ROW_WORDS))
    asks = carray(longs_at(asks_at), (count, ASK_WORDS))
    if not learn(control, rows, asks) or not join(control, rows, asks):
        return -1
    if sources & CALIBRATED:
        for at in range(count):
            if not rows[asks[at, ASK_ROW], CANDIDATES_AT]:
                ends(control, ROW_NEEDS_MEMORY, asks[at, ASK_ROW])
                return -1
    answers = carray(ints_at(control[TOKENS_OUT_AT]), (count, ANSWER_WORDS))
    tokens_out = carray(ints_at(control[TOKENS_OUT_AT] + 4 * count * ANSWER_WORDS), count * LONGEST)
    chances_out = carray(doubles_at(control[CHANCES_OUT_AT]), count * LONGEST)
    told = 0
    for at in range(count):
        row, answer = rows[asks[at, ASK_ROW]], answers[at]
        answer[TOLD_COUNT] = 0
        text = carray(ints_at(asks[at, ASK_TEXT_AT]), asks[at, ASK_LENGTH])
        if sources & CALIBRATED:
            candidates.compare(carray(ints_at(row[CANDIDATES_AT]), candidates.TEXT_WORDS), text, _table(control, row))
        longest = min(asks[at, ASK_BUDGET], LONGEST)
        if sources and longest > 0 and row[JOINED] == text.size:
            ahead = carray(ints_at(aheads_at), asks[at, ASK_AHEADS])
            _guess(
                control, row, text, ahead, longest, sources, factor, offset, least, answer, tokens_out[told:],
                chances_out[told:],
            )  # fmt: skip
            told += answer[TOLD_COUNT]
        aheads_at += 4 * asks[at, ASK_AHEADS]
    return told
