"""The guess of all sources together: who has something to say behind a text, and their blend. Compiled into the one
call of step.py.
"""

from __future__ import annotations

import numpy as np

from services.proposer.suffix_store import candidates, segment_loops
from services.proposer.suffix_store.blending import (
    FOLLOWER,
    ITSELF,
    LED,
    LINE,
    LINE_AT,
    LINE_OF_AUTOMATA,
    LINES,
    SOURCE,
    SPEAKERS,
    WHICH,
    blend,
)
from services.proposer.suffix_store.blending import MATCHED as SPEAKER_MATCHED
from services.proposer.suffix_store.chances import CHANCE, CORPUS, NGRAM, OWN, PREDICTION, SHARED, STORE, cell_of
from services.proposer.suffix_store.guessing import DRAFTED, MATCHED
from services.proposer.suffix_store.layout import (
    ALL_OF_SPEAKER,
    BEGIN,
    CANDIDATES_AT,
    DRAFT_AT,
    LIMIT,
    LINES_AT,
    LONGEST,
    NEW_AT,
    NEW_READER,
    NEW_SERIAL,
    OLD_AT,
    OLD_READER,
    ONLY,
    OWN_FOLLOWER,
    PREDICTION_AT,
    RATIOS_AT,
    SPACE,
    SPACES_AT,
    SPARE_AT,
    SPEAKERS_AT,
    TOLD_AT,
    TOLD_COUNT,
    TOLD_MATCHED,
    TOLD_SOURCE,
    TOLD_WHICH,
    WRITES,
    WRITTEN,
    space_table,
    speaker_table,
)
from services.proposer.suffix_store.loops import END, FOLLOWER_WORDS, LENGTH, READER
from services.proposer.suffix_store.native import (
    Doubles,
    Floats,
    Ints,
    Longs,
    carray,
    doubles,
    ints,
    ints_at,
    longs,
    longs_at,
    loop,
    part,
)
from services.proposer.suffix_store.sources import (
    COUNTED,
    behind,
    catch_up,
    cell_of_prediction,
    chances_of,
    context_of,
    copied,
    predicted,
    reads,
    recent,
    segments_of,
)

# Chances decide how far a guess goes; segments look at no more contexts than this lets them.
_SEGMENT_FACTOR = 4.0
_NO, _YES = np.bool_(False), np.bool_(True)


@loop
def _automaton_speaks(speaker: Longs, source: int, follower: Longs, ahead: Ints, itself: bool) -> None:
    """`itself`: its context occurs at the text's end, too, where nothing can follow yet."""
    for word in range(FOLLOWER_WORDS):
        speaker[FOLLOWER + word] = follower[word]
    speaker[FOLLOWER + END] = READER
    reads(part(speaker, FOLLOWER), ahead, BEGIN)
    speaker[SOURCE], speaker[WHICH], speaker[LINE], speaker[LED] = source, 0, LINE_OF_AUTOMATA, 0
    speaker[SPEAKER_MATCHED], speaker[ITSELF] = speaker[FOLLOWER + LENGTH], itself and not ahead.size


@loop
def _line_speaks(control: Longs, speaker: Longs, number: int, source: int, which: int, agrees: bool) -> None:
    """With the guess that lies in the scratch, and the shares there."""
    told = longs(control[TOLD_AT])
    draft = ints(control[DRAFT_AT])
    ratios = doubles(control[RATIOS_AT])
    line_at = control[LINES_AT] + 4 * number * 2 * LONGEST
    line = ints(line_at)
    for at in range(told[DRAFTED]):
        length = told[MATCHED] + at
        line[at] = draft[at]
        if source == PREDICTION:
            line[LONGEST + at] = cell_of_prediction(length, agrees)
        else:
            line[LONGEST + at] = cell_of(source, length, ratios[at])
    speaker[SOURCE], speaker[WHICH], speaker[LINE], speaker[LED] = source, which, told[DRAFTED], 0
    speaker[SPEAKER_MATCHED], speaker[LINE_AT] = told[MATCHED], line_at


@loop
def _expected_of(table: Floats, line: Ints, count: int, least: float) -> float:
    """How many tokens of a line are expected to stand."""
    score, probability = 0.0, 1.0
    for at in range(count):
        probability *= table[line[LONGEST + at], CHANCE]
        if probability < least:
            break
        score += probability
    return score


@loop
def _called(
    control: Longs, row: Longs, text: Ints, ahead: Ints, longest: int, least: float, table: Floats, speakers: Longs
) -> int:  # fmt: skip
    """How many have something to say: they stand behind the text and what is ahead of it."""
    told = longs(control[TOLD_AT])
    own = part(row, OWN_FOLLOWER)
    _automaton_speaks(speakers[0], np.int64(OWN), own, ahead, _YES)
    count, lines = 1, 0
    if row[SPACE] >= 0:
        space = space_table(control[SPACES_AT])[row[SPACE]]
        if space[NEW_AT]:
            catch_up(row, space, text, control[LIMIT])
            new = part(row, NEW_READER)
            wrote = row[WRITES] == space[NEW_SERIAL] and row[WRITTEN] == text.size
            _automaton_speaks(speakers[count], np.int64(SHARED), new, ahead, wrote)
            count += 1
            if space[OLD_AT]:
                old = part(row, OLD_READER)
                _automaton_speaks(speakers[count], np.int64(SHARED), old, ahead, _NO)
                count += 1
        for source in (STORE, CORPUS):
            addresses, best = segments_of(space, row, source), 0.0
            context = context_of(control, text, ahead)
            draft = ints(control[DRAFT_AT])
            ratios = doubles(control[RATIOS_AT])
            for which in range(addresses.size):
                segment = carray(longs_at(addresses[which]), segment_loops.SEGMENT_WORDS)
                segment_loops.guess(
                    segment, context, context.size, longest, _SEGMENT_FACTOR, 0.0, least, draft, ratios, told
                )
                if not told[DRAFTED]:
                    continue
                # In the line behind all others', until it is the best.
                _line_speaks(control, speakers[count], LINES, np.int64(source), np.int64(which), _YES)
                tried = ints(speakers[count, LINE_AT])
                score = _expected_of(table, tried, told[DRAFTED], least)
                if score > best:
                    best = score
                    _line_speaks(control, speakers[SPEAKERS], lines, np.int64(source), np.int64(which), _YES)
            if best > 0:
                copied(speakers[SPEAKERS], BEGIN, ALL_OF_SPEAKER, speakers[count], BEGIN)
                count, lines = count + 1, lines + 1
    if row[PREDICTION_AT]:
        agrees = predicted(control, row, text, ahead, longest)
        if told[DRAFTED]:
            _line_speaks(control, speakers[count], lines, np.int64(PREDICTION), ONLY, agrees)
            count, lines = count + 1, lines + 1
    recent(control, behind(control, own, ahead), text, ahead, longest, COUNTED)
    if told[DRAFTED]:
        _line_speaks(control, speakers[count], lines, np.int64(NGRAM), ONLY, _YES)
        count += 1
    return count


@loop
def together(
    control: Longs, row: Longs, text: Ints, ahead: Ints, assumed: Ints, longest: int, least: float, answer: Ints,
    tokens_out: Ints, chances_out: Doubles,
) -> None:  # fmt: skip
    """What all sources say together is the answer. Of what is ahead, the last tokens are only `assumed` to follow."""
    table = chances_of(control, row)
    speakers = speaker_table(control[SPEAKERS_AT])
    count = _called(control, row, text, ahead, longest, least, table, speakers)
    made_at = text.size + ahead.size - assumed.size
    records = carray(ints_at(row[CANDIDATES_AT]), candidates.TEXT_WORDS)
    spare = carray(ints_at(control[SPARE_AT]), candidates.RECORD_WORDS)
    record = candidates.begun(records, spare, made_at, assumed, count)
    last = np.int64(-1)
    if ahead.size:
        last = np.int64(ahead[ahead.size - 1])
    elif text.size:
        last = np.int64(text[text.size - 1])
    drafted = blend(
        speakers, count, table, control[LIMIT], longest, least, last, record, assumed.size, tokens_out, chances_out
    )
    best = 0
    for which in range(1, count):
        if speakers[which, LED] > speakers[best, LED]:
            best = which
    answer[TOLD_COUNT], answer[TOLD_SOURCE], answer[TOLD_WHICH] = drafted, speakers[best, SOURCE], speakers[best, WHICH]
    answer[TOLD_MATCHED] = speakers[best, SPEAKER_MATCHED]
