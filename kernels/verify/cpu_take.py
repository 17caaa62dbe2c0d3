"""A row of logits on its way in: copied as float32, edited, and the highest score of every block of ids noted.

The copy ends with -inf up to a whole block, so no loop behind this one knows where a vocabulary ends. Float32 rows of
whole blocks that nothing edits are looked at where they are: copying them took a quarter of the time of 8 rows.
"""

from __future__ import annotations

import numpy as np

from kernels import cpu_vectors as v
from kernels.cpu_vectors import LANES
from kernels.verify import cpu_lanes as lanes
from kernels.verify.cpu_words import (
    BEGINS,
    BFLOAT16,
    BIAS_BEGINS,
    BIAS_IDS,
    BIAS_VALUES,
    BLOCK,
    BLOCKS,
    COPY,
    DRAFTED,
    FORBIDDEN_BEGINS,
    FORBIDDEN_IDS,
    LOGITS,
    MASK_BITS,
    MASK_OF_ROW,
    MASK_STRIDE,
    MAXIMA,
    ROWS,
    SCORES,
    SEEN_BEGINS,
    SEEN_COUNTS,
    SEEN_IDS,
    STRIDE,
    VOCABULARY,
    inlined,
    inner,
)
from kernels.verify.questions import FREQUENCY, PRESENCE, REPETITION

_LOWEST = np.float32(-np.inf)
_ONE, _NOTHING = np.float32(1.0), np.float32(0.0)


@inner
def take(call, rule, sequence, row, depth):
    """Scores and maxima of a row that stands behind `depth` drafted tokens: those of the rows in ROWS from the
    sequence's first (`path`)."""
    source = v.word(call, LOGITS) + row * v.word(call, STRIDE)
    if not _may_be_edited(call, rule, row):
        look(call, source)
        return
    _copy(call, source)
    if _edit(call, rule, sequence, row, depth):
        for block in range(v.word(call, BLOCKS)):
            _note_maximum(call, block)


@inner
def look(call, source):
    """Scores and maxima of the logits at this address, which stay as they are."""
    if v.word(call, BFLOAT16) != 0 or v.word(call, VOCABULARY) % BLOCK != 0:
        _copy(call, source)
        return
    v.store_i64(call, SCORES, source)
    for block in range(v.word(call, BLOCKS)):
        _note_maximum(call, block)


@inner
def _copy(call, source):
    v.store_i64(call, SCORES, v.word(call, COPY))
    scores, maxima, vocabulary = v.word(call, COPY), v.word(call, MAXIMA), v.word(call, VOCABULARY)
    bfloat16 = v.word(call, BFLOAT16) != 0
    whole = vocabulary // BLOCK
    for block in range(whole):
        i = block * BLOCK
        if bfloat16:
            a, b = v.load_bfloat16(source, i), v.load_bfloat16(source, i + 16)
            c, d = v.load_bfloat16(source, i + 32), v.load_bfloat16(source, i + 48)
        else:
            a, b = v.load_floats(source, i), v.load_floats(source, i + 16)
            c, d = v.load_floats(source, i + 32), v.load_floats(source, i + 48)
        v.store_floats(scores, i, a)
        v.store_floats(scores, i + 16, b)
        v.store_floats(scores, i + 32, c)
        v.store_floats(scores, i + 48, d)
        v.store_f32(maxima, block, _maximum(a, b, c, d))
    if whole < v.word(call, BLOCKS):
        for i in range(whole * BLOCK, whole * BLOCK + BLOCK, LANES):
            left = min(max(vocabulary - i, 0), LANES)
            value = v.load_bfloat16_part(source, i, left) if bfloat16 else v.load_floats_part(source, i, left)
            v.store_floats(scores, i, lanes.choose(lanes.below_count(left), value, v.spread(_LOWEST)))
        _note_maximum(call, whole)


@inlined
def _maximum(a, b, c, d):
    """NaN where there is one: it counts as the highest."""
    if lanes.has_nan(a, b) | lanes.has_nan(c, d):
        return np.float32(np.nan)
    return v.largest(v.maximum(v.maximum(a, b), v.maximum(c, d)))


@inner
def _note_maximum(call, block):
    scores, i = v.word(call, SCORES), block * BLOCK
    highest = _maximum(
        v.load_floats(scores, i), v.load_floats(scores, i + 16),
        v.load_floats(scores, i + 32), v.load_floats(scores, i + 48),
    )  # fmt: skip
    v.store_f32(v.word(call, MAXIMA), block, highest)


@inner
def highest(call):
    """Of the whole row; NaN where there is one."""
    maxima, most, nans = v.word(call, MAXIMA), v.spread(_LOWEST), 0
    # The maxima are filled up with -inf to whole vectors.
    for i in range(0, v.word(call, BLOCKS), LANES):
        value = v.load_floats(maxima, i)
        nans |= lanes.has_nan(value, value)
        most = v.maximum(value, most)
    return np.float32(np.nan) if nans else v.largest(most)


# Edits -----------------------------------------------------------------------------------------------------


@inlined
def _penalises(rule):
    repetition, presence = v.load_f32(rule, REPETITION), v.load_f32(rule, PRESENCE)
    return not (repetition == _ONE and presence == _NOTHING and v.load_f32(rule, FREQUENCY) == _NOTHING)


@inlined
def _may_be_edited(call, rule, row):
    masked = v.word(call, MASK_OF_ROW) != 0 and v.load_i32(v.word(call, MASK_OF_ROW), row) >= 0
    return masked or v.word(call, BIAS_BEGINS) != 0 or _penalises(rule)


@inner
def _edit(call, rule, sequence, row, depth):
    """Penalties, biases, what is forbidden, what is allowed; in this order. Whether anything was edited."""
    scores = v.word(call, SCORES)
    edited = _penalise(call, rule, sequence, row, depth)
    if v.word(call, BIAS_BEGINS) != 0:
        begins = v.word(call, BIAS_BEGINS)
        for i in range(v.load_i32(begins, sequence), v.load_i32(begins, sequence + 1)):
            at = np.int64(v.load_i32(v.word(call, BIAS_IDS), i))
            v.store_f32(scores, at, v.load_f32(scores, at) + v.load_f32(v.word(call, BIAS_VALUES), i))
            edited = True
        begins = v.word(call, FORBIDDEN_BEGINS)
        for i in range(v.load_i32(begins, row), v.load_i32(begins, row + 1)):
            v.store_f32(scores, np.int64(v.load_i32(v.word(call, FORBIDDEN_IDS), i)), _LOWEST)
            edited = True
    if v.word(call, MASK_OF_ROW) != 0 and v.load_i32(v.word(call, MASK_OF_ROW), row) >= 0:
        _mask(call, np.int64(v.load_i32(v.word(call, MASK_OF_ROW), row)))
        edited = True
    return edited


@inner
def _mask(call, index):
    scores = v.word(call, SCORES)
    bits = v.word(call, MASK_BITS) + index * v.word(call, MASK_STRIDE)
    for i in range(0, v.word(call, VOCABULARY), LANES):
        kept = np.int64(v.load_i32(bits, i >> 5)) >> (i & 31)
        v.store_floats(scores, i, lanes.choose(kept, v.load_floats(scores, i), v.spread(_LOWEST)))


@inner
def _penalise(call, rule, sequence, row, depth):
    """Of every id that counts: those seen, with the drafted tokens this row stands behind added."""
    if not _penalises(rule):
        return False
    repetition, presence = v.load_f32(rule, REPETITION), v.load_f32(rule, PRESENCE)
    frequency = v.load_f32(rule, FREQUENCY)
    scores, begin, end = v.word(call, SCORES), 0, 0
    if v.word(call, SEEN_BEGINS) != 0:
        begin = np.int64(v.load_i32(v.word(call, SEEN_BEGINS), sequence))
        end = np.int64(v.load_i32(v.word(call, SEEN_BEGINS), sequence + 1))
    seen, counts = v.word(call, SEEN_IDS), v.word(call, SEEN_COUNTS)
    for i in range(begin, end):
        token, count = np.int64(v.load_i32(seen, i)), np.int64(v.load_i32(counts, i))
        score = _penalised(v.load_f32(scores, token), count, repetition, presence, frequency)
        v.store_f32(scores, token, score)
    # Drafted tokens start anew from their logit, with all their counts: few enough to look them up.
    path = np.int64(v.load_i32(v.word(call, BEGINS), sequence))
    for place in range(1, depth + 1):
        token = _drafted(call, path + place)
        count = 0
        for other in range(1, depth + 1):
            count += _drafted(call, path + other) == token
        for i in range(begin, end):
            count += v.load_i32(counts, i) if v.load_i32(seen, i) == token else 0
        score = _penalised(_logit(call, row, token), count, repetition, presence, frequency)
        v.store_f32(scores, token, score)
    return end > begin or depth > 0


@inlined
def _drafted(call, place):
    """The token drafted at a place of the path."""
    return np.int64(v.load_i32(v.word(call, DRAFTED), np.int64(v.load_i32(v.word(call, ROWS), place))))


@inlined
def _logit(call, row, token):
    source = v.word(call, LOGITS) + row * v.word(call, STRIDE)
    return v.load_bf16(source, token) if v.word(call, BFLOAT16) != 0 else v.load_f32(source, token)


@inlined
def _penalised(score, count, repetition, presence, frequency):
    if repetition != _ONE:
        score = score / repetition if score > _NOTHING else score * repetition
    if count != 0 and (presence != _NOTHING or frequency != _NOTHING):
        score = score - (frequency * np.float32(count) + presence)
    return score
