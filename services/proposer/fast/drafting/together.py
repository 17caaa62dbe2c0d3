"""The draft of all sources together: which of them have a draft for a text, and their blend. Compiled into step.py.
"""

from __future__ import annotations

import numpy as np

from services.proposer.fast.automaton.loops import END, FOLLOWER_WORDS, LENGTH, READER
from services.proposer.fast.drafting import candidates
from services.proposer.fast.drafting.blending import (
    FOLLOWER,
    ITSELF,
    LED,
    LINE,
    LINE_AT,
    LINE_OF_AUTOMATA,
    LINES,
    PREDICTORS,
    SOURCE,
    WHICH,
    blend,
)
from services.proposer.fast.drafting.blending import MATCHED as PREDICTOR_MATCHED
from services.proposer.fast.drafting.chances import (
    CORPUS,
    NGRAM,
    OWN,
    PREDICTION,
    SHARED,
    STORE,
    cell_of,
    rate_of,
)
from services.proposer.fast.drafting.guessing import DRAFTED, MATCHED
from services.proposer.fast.drafting.layout import (
    ALL_OF_PREDICTOR,
    ANSWER_COUNT,
    ANSWER_MATCHED,
    ANSWER_SOURCE,
    ANSWER_WHICH,
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
    OLD_SERIAL,
    ONLY,
    OWN_FOLLOWER,
    PREDICTION_AT,
    PREDICTORS_AT,
    RATIOS_AT,
    RESULT_AT,
    SPACE,
    SPACES_AT,
    SPARE_AT,
    WRITES,
    WRITTEN,
    predictor_table,
    space_table,
)
from services.proposer.fast.drafting.sources import (
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
from services.proposer.fast.native import (
    Doubles,
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
from services.proposer.fast.segments import loops as segment_loops

# Rates decide how long a draft is; this bounds how many contexts segments look at.
_SEGMENT_FACTOR = 4.0
_YES = np.bool_(True)


@loop
def _automaton_predicts(predictor: Longs, source: int, follower: Longs, ahead: Ints, itself: bool) -> None:
    """`itself`: one occurrence of the context is the text's own end, which nothing follows yet."""
    for word in range(FOLLOWER_WORDS):
        predictor[FOLLOWER + word] = follower[word]
    predictor[FOLLOWER + END] = READER
    reads(part(predictor, FOLLOWER), ahead, BEGIN)
    predictor[SOURCE], predictor[WHICH], predictor[LINE], predictor[LED] = source, 0, LINE_OF_AUTOMATA, 0
    predictor[PREDICTOR_MATCHED], predictor[ITSELF] = predictor[FOLLOWER + LENGTH], itself and not ahead.size


@loop
def _line_predicts(control: Longs, predictor: Longs, number: int, source: int, which: int, agrees: bool) -> None:
    """The draft and the shares in the scratch memory become a line."""
    result = longs(control[RESULT_AT])
    draft = ints(control[DRAFT_AT])
    ratios = doubles(control[RATIOS_AT])
    line_at = control[LINES_AT] + 4 * number * 2 * LONGEST
    line = ints(line_at)
    for at in range(result[DRAFTED]):
        length = result[MATCHED] + at
        line[at] = draft[at]
        if source == PREDICTION:
            line[LONGEST + at] = cell_of_prediction(length, agrees)
        else:
            line[LONGEST + at] = cell_of(source, length, ratios[at])
    predictor[SOURCE], predictor[WHICH], predictor[LINE], predictor[LED] = source, which, result[DRAFTED], 0
    predictor[PREDICTOR_MATCHED], predictor[LINE_AT] = result[MATCHED], line_at


@loop
def _expected_of(table: Doubles, line: Ints, count: int, least: float) -> float:
    """How many tokens of a line are expected to be accepted."""
    score, probability = 0.0, 1.0
    for at in range(count):
        probability *= rate_of(table, line[LONGEST + at])
        if probability < least:
            break
        score += probability
    return score


@loop
def _predictors(
    control: Longs, row: Longs, text: Ints, ahead: Ints, longest: int, least: float, table: Doubles, predictors: Longs
) -> int:  # fmt: skip
    """The number of sources with a draft behind the text and what is ahead of it."""
    result = longs(control[RESULT_AT])
    own = part(row, OWN_FOLLOWER)
    _automaton_predicts(predictors[0], np.int64(OWN), own, ahead, _YES)
    count, lines = 1, 0
    if row[SPACE] >= 0:
        space = space_table(control[SPACES_AT])[row[SPACE]]
        if space[NEW_AT]:
            catch_up(row, space, text, control[LIMIT])
            new = part(row, NEW_READER)
            wrote = row[WRITES] == space[NEW_SERIAL] and row[WRITTEN] == text.size
            _automaton_predicts(predictors[count], np.int64(SHARED), new, ahead, wrote)
            count += 1
            if space[OLD_AT]:
                old = part(row, OLD_READER)
                wrote = row[WRITES] == space[OLD_SERIAL] and row[WRITTEN] == text.size
                _automaton_predicts(predictors[count], np.int64(SHARED), old, ahead, wrote)
                count += 1
        for source in (STORE, CORPUS):
            addresses, best = segments_of(space, row, source), 0.0
            context = context_of(control, text, ahead)
            draft = ints(control[DRAFT_AT])
            ratios = doubles(control[RATIOS_AT])
            for which in range(addresses.size):
                segment = carray(longs_at(addresses[which]), segment_loops.SEGMENT_WORDS)
                segment_loops.guess(
                    segment, context, context.size, longest, _SEGMENT_FACTOR, 0.0, least, draft, ratios, result
                )
                if not result[DRAFTED]:
                    continue
                # In the spare line, until it is the best.
                _line_predicts(control, predictors[count], LINES, np.int64(source), np.int64(which), _YES)
                tried = ints(predictors[count, LINE_AT])
                score = _expected_of(table, tried, result[DRAFTED], least)
                if score > best:
                    best = score
                    _line_predicts(control, predictors[PREDICTORS], lines, np.int64(source), np.int64(which), _YES)
            if best > 0:
                copied(predictors[PREDICTORS], BEGIN, ALL_OF_PREDICTOR, predictors[count], BEGIN)
                count, lines = count + 1, lines + 1
    if row[PREDICTION_AT]:
        agrees = predicted(control, row, text, ahead, longest)
        if result[DRAFTED]:
            _line_predicts(control, predictors[count], lines, np.int64(PREDICTION), ONLY, agrees)
            count, lines = count + 1, lines + 1
    recent(control, behind(control, own, ahead), text, ahead, longest, COUNTED)
    if result[DRAFTED]:
        _line_predicts(control, predictors[count], lines, np.int64(NGRAM), ONLY, _YES)
        count += 1
    return count


@loop
def together(
    control: Longs, row: Longs, text: Ints, ahead: Ints, longest: int, least: float, answer: Ints,
    tokens_out: Ints, chances_out: Doubles,
) -> None:  # fmt: skip
    """The draft of all sources together is the answer."""
    table = chances_of(row)
    predictors = predictor_table(control[PREDICTORS_AT])
    count = _predictors(control, row, text, ahead, longest, least, table, predictors)
    records = carray(ints_at(row[CANDIDATES_AT]), candidates.TEXT_WORDS)
    spare = carray(ints_at(control[SPARE_AT]), candidates.RECORD_WORDS)
    record = candidates.begun(records, spare, text.size, ahead, count)
    last = np.int64(-1)
    if ahead.size:
        last = np.int64(ahead[ahead.size - 1])
    elif text.size:
        last = np.int64(text[text.size - 1])
    drafted = blend(
        predictors, count, table, control[LIMIT], longest, least, last, record, ahead.size, tokens_out, chances_out
    )
    best = 0
    for which in range(1, count):
        if predictors[which, LED] > predictors[best, LED]:
            best = which
    answer[ANSWER_COUNT], answer[ANSWER_MATCHED] = drafted, predictors[best, PREDICTOR_MATCHED]
    answer[ANSWER_SOURCE], answer[ANSWER_WHICH] = predictors[best, SOURCE], predictors[best, WHICH]
