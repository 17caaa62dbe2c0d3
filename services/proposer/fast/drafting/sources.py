"""What all sources need: followers that have read a text and what is ahead of it, contexts, and the drafts of the last
occurrence and of a prediction. Compiled into step.py; knows addresses and ints.
"""

from __future__ import annotations

import numpy as np

from services.proposer.fast.automaton.loops import (
    AUTOMATON,
    DEPTH,
    END,
    LENGTH,
    READER,
    STATE,
    opened,
    read,
)
from services.proposer.fast.drafting import predicting
from services.proposer.fast.drafting.chances import CELL_WORDS, CELLS, PREDICTION, STORE, cell_of
from services.proposer.fast.drafting.guessing import DRAFTED, MATCHED, most_recent
from services.proposer.fast.drafting.layout import (
    ALL_OF_FOLLOWER,
    ALL_OF_PREDICTION,
    AS_READER,
    BEGIN,
    CHANCES_AT,
    CONTEXT_AT,
    COPY_AT,
    CORPORA,
    CORPORA_AT,
    DRAFT_AT,
    LEAST_NGRAM,
    LIMIT,
    NEW_AT,
    NEW_READER,
    NEW_SERIAL,
    OLD_AT,
    OLD_READER,
    OLD_SERIAL,
    PREDICTION_AT,
    PROMPT,
    RATIOS_AT,
    READ,
    READS_NEW,
    READS_OLD,
    RESULT_AT,
    SEGMENTS,
    SEGMENTS_AT,
    WRITER,
    WRITES,
    WRITTEN,
)
from services.proposer.fast.drafting.taking_in import starts
from services.proposer.fast.native import (
    Doubles,
    Ints,
    Longs,
    carray,
    doubles,
    doubles_at,
    ints,
    ints_at,
    longs,
    longs_at,
    loop,
    part,
)

# A prediction has no counts: its share says whether the place in it is known, or only assumed.
_AGREED, _SUPPOSED = 0.95, 0.35
# Plain shares, or those that rates are looked up by. Not Python's bools: numba would compile a function for each.
PLAIN, COUNTED = np.bool_(False), np.bool_(True)


@loop
def copied(source: Longs, begin: int, words: int, to: Longs, at: int) -> None:
    for word in range(words):
        to[at + word] = source[begin + word]


@loop
def reads(follower: Longs, text: Ints, begin: int) -> None:
    words, states, entries, buckets = opened(follower[AUTOMATON])
    for at in range(begin, text.size):
        read(words, states, entries, buckets, follower, text[at])


@loop
def _stands_where_it_wrote(row: Longs, space: Longs, text: Ints) -> bool:
    """Whether the text was learned as far back as contexts go: the reader's state is the writer's then, and is
    copied."""
    words = longs(space[NEW_AT])
    if row[WRITES] != space[NEW_SERIAL] or row[WRITTEN] != text.size or row[WRITER + LENGTH] < words[DEPTH]:
        return False
    row[NEW_READER + STATE], row[NEW_READER + LENGTH] = row[WRITER + STATE], row[WRITER + LENGTH]
    return True


@loop
def catch_up(row: Longs, space: Longs, text: Ints, depth: int) -> None:
    """The text's readers of its namespace's automata are advanced to its end. One that is far behind, or finds another
    automaton, reads only as many tokens as a context has."""
    begin, late = row[READ], max(0, text.size - depth)
    new, old = part(row, NEW_READER), part(row, OLD_READER)
    if begin < late:
        row[READS_NEW] = row[READS_OLD] = 0
    if row[READS_NEW] != space[NEW_SERIAL]:
        if row[READS_NEW] == space[OLD_SERIAL]:
            row[READS_OLD] = row[READS_NEW]
            copied(row, NEW_READER, ALL_OF_FOLLOWER, row, OLD_READER)
        row[READS_NEW] = space[NEW_SERIAL]
        starts(row, NEW_READER, space[NEW_AT], AS_READER)
        reads(new, text, late)
    elif not _stands_where_it_wrote(row, space, text):
        reads(new, text, begin)
    if space[OLD_AT]:
        if row[READS_OLD] != space[OLD_SERIAL]:
            row[READS_OLD] = space[OLD_SERIAL]
            starts(row, OLD_READER, space[OLD_AT], AS_READER)
            reads(old, text, late)
        else:
            reads(old, text, begin)
    row[READ] = text.size


@loop
def behind(control: Longs, follower: Longs, ahead: Ints) -> Longs:
    """The follower, or a copy of it that has read what is ahead."""
    if not ahead.size:
        return follower
    copy = longs(control[COPY_AT])
    copied(follower, BEGIN, ALL_OF_FOLLOWER, copy, BEGIN)
    copy[END] = READER
    reads(copy, ahead, BEGIN)
    return copy  # type: ignore[no-any-return]


@loop
def context_of(control: Longs, text: Ints, ahead: Ints) -> Ints:
    """The last tokens of the text and what is ahead of it."""
    length = min(control[LIMIT], text.size + ahead.size)
    context = carray(ints_at(control[CONTEXT_AT]), length)
    begin = text.size + ahead.size - length
    for at in range(length):
        context[at] = text[begin + at] if begin + at < text.size else ahead[begin + at - text.size]
    return context  # type: ignore[no-any-return]


@loop
def recent(control: Longs, follower: Longs, text: Ints, ahead: Ints, longest: int, counts: bool) -> None:
    """The draft of the last occurrence, in the scratch memory."""
    words, states, entries, buckets = opened(follower[AUTOMATON])
    draft = ints(control[DRAFT_AT])
    ratios = doubles(control[RATIOS_AT])
    result = longs(control[RESULT_AT])
    most_recent(
        words, states, entries, buckets, follower, control[LEAST_NGRAM], longest, text, ahead, counts, draft, ratios,
        result,
    )  # fmt: skip


@loop
def predicted(control: Longs, row: Longs, text: Ints, ahead: Ints, longest: int) -> bool:
    """The rest of the prediction, in the scratch memory; whether the place in it is known."""
    followed = longs(row[PREDICTION_AT])
    predicting.follow(followed, text, ahead[:0], row[PROMPT])
    if ahead.size:
        copy = longs(control[COPY_AT])
        copied(followed, BEGIN, ALL_OF_PREDICTION, copy, BEGIN)
        followed = copy
        predicting.follow(followed, text, ahead, row[PROMPT])
    result = longs(control[RESULT_AT])
    draft = ints(control[DRAFT_AT])
    result[DRAFTED], result[MATCHED] = predicting.rest(followed, longest, draft), followed[predicting.AGREED]
    return bool(not followed[predicting.LOST])


@loop
def cell_of_prediction(length: int, agrees: bool) -> int:
    return cell_of(np.int64(PREDICTION), length, _AGREED if agrees else _SUPPOSED)  # type: ignore[no-any-return]


@loop
def segments_of(space: Longs, row: Longs, source: int) -> Longs:
    """Addresses of a source's segments."""
    if source == STORE:
        return carray(longs_at(space[SEGMENTS_AT]), space[SEGMENTS])  # type: ignore[no-any-return]
    return carray(longs_at(row[CORPORA_AT]), row[CORPORA])  # type: ignore[no-any-return]


@loop
def chances_of(row: Longs) -> Doubles:
    """A text's rates: its namespace's, or its own without one."""
    return carray(doubles_at(row[CHANCES_AT]), (CELLS, CELL_WORDS))  # type: ignore[no-any-return]
