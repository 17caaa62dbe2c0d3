"""What sources of guesses need, whoever asks them: where they stand behind a text and what is ahead of it, and what the
plainer ones say. Compiled into the one call of step.py; knows addresses and ints.
"""

from __future__ import annotations

import numpy as np

from services.proposer.suffix_store import predicting
from services.proposer.suffix_store.chances import CELL_WORDS, CELLS, PREDICTION, STORE, cell_of
from services.proposer.suffix_store.guessing import DRAFTED, MATCHED, most_recent
from services.proposer.suffix_store.layout import (
    ALL_OF_FOLLOWER,
    ALL_OF_PREDICTION,
    AS_READER,
    BEGIN,
    BELIEFS_AT,
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
    SEGMENTS,
    SEGMENTS_AT,
    TOLD_AT,
    WRITER,
    WRITES,
    WRITTEN,
)
from services.proposer.suffix_store.loops import (
    AUTOMATON,
    DEPTH,
    END,
    LENGTH,
    READER,
    STATE,
    opened,
    read,
)
from services.proposer.suffix_store.native import (
    Floats,
    Ints,
    Longs,
    carray,
    doubles,
    floats_at,
    ints,
    ints_at,
    longs,
    longs_at,
    loop,
    part,
)
from services.proposer.suffix_store.taking_in import starts

# Instead of a share, where a prediction has only one thing to say: whether its place is known, or only supposed.
_AGREED, _SUPPOSED = 0.95, 0.35
# Shares as they are, or those that chances are learned by. Not Python's own, of which numba would make two functions.
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
    """All of the text's end was learned, as far back as anyone looks: there the reader would be where the writer is."""
    words = longs(space[NEW_AT])
    if row[WRITES] != space[NEW_SERIAL] or row[WRITTEN] != text.size or row[WRITER + LENGTH] < words[DEPTH]:
        return False
    row[NEW_READER + STATE], row[NEW_READER + LENGTH] = row[WRITER + STATE], row[WRITER + LENGTH]
    return True


@loop
def catch_up(row: Longs, space: Longs, text: Ints, depth: int) -> None:
    """The text's readers of its namespace's automata are brought to its end. Who comes late, or finds another
    automaton, need not read more than is ever looked at."""
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
    """The follower, or its copy that has read what is ahead: nobody else hears of it."""
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
    """The guess of the last place, in the scratch."""
    words, states, entries, buckets = opened(follower[AUTOMATON])
    draft = ints(control[DRAFT_AT])
    ratios = doubles(control[RATIOS_AT])
    told = longs(control[TOLD_AT])
    most_recent(
        words, states, entries, buckets, follower, control[LEAST_NGRAM], longest, text, ahead, counts, draft, ratios,
        told,
    )  # fmt: skip


@loop
def predicted(control: Longs, row: Longs, text: Ints, ahead: Ints, longest: int) -> bool:
    """What was predicted from here on, in the scratch; whether the place is known."""
    followed = longs(row[PREDICTION_AT])
    predicting.follow(followed, text, ahead[:0], row[PROMPT])
    if ahead.size:
        copy = longs(control[COPY_AT])
        copied(followed, BEGIN, ALL_OF_PREDICTION, copy, BEGIN)
        followed = copy
        predicting.follow(followed, text, ahead, row[PROMPT])
    told = longs(control[TOLD_AT])
    draft = ints(control[DRAFT_AT])
    told[DRAFTED], told[MATCHED] = predicting.rest(followed, longest, draft), followed[predicting.AGREED]
    return bool(not followed[predicting.LOST])


@loop
def cell_of_prediction(length: int, agrees: bool) -> int:
    return cell_of(np.int64(PREDICTION), length, _AGREED if agrees else _SUPPOSED)  # type: ignore[no-any-return]


@loop
def segments_of(space: Longs, row: Longs, source: int) -> Longs:
    """Addresses of those a source looks into."""
    if source == STORE:
        return carray(longs_at(space[SEGMENTS_AT]), space[SEGMENTS])  # type: ignore[no-any-return]
    return carray(longs_at(row[CORPORA_AT]), row[CORPORA])  # type: ignore[no-any-return]


@loop
def chances_of(control: Longs, row: Longs) -> Floats:
    """A text's chances: its namespace's, its own where it has none, what is believed where nothing was learned."""
    at = row[CHANCES_AT]
    if not at:
        at = control[BELIEFS_AT]
    return carray(floats_at(at), (CELLS, CELL_WORDS))  # type: ignore[no-any-return]
