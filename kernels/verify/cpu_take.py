"""A row of logits on its way in: copied as float32, edited, and the highest score of every block of ids noted.

The copy ends with -inf up to a whole block, so no loop behind this one knows where a vocabulary ends. Float32 rows of
whole blocks that nothing edits are looked at where they are: copying them took a quarter of the time of 8 rows.
"""

from __future__ import annotations

import numpy as np

from kernels import cpu_vectors as v
from kernels.cpu_vectors import LANES
from kernels.verify import cpu_lanes as lanes
from kernels.verify.cpu_call import BLOCK, inlined, inner

_LOWEST = np.float32(-np.inf)
_ONE, _NOTHING = np.float32(1.0), np.float32(0.0)


@inner
def take(call, rule, sequence, row, depth):
    """Scores and maxima of a row that stands behind `depth` drafted tokens: those of the rows in ROWS from the
    sequence's first (`path`)."""
    source = call.logits + row * call.stride
    if not _may_be_edited(call, rule, row):
        look(call, source)
        return
    if _is_masked(call, row) and call.bias_begins == 0 and not _penalises(rule):
        _copy_allowed(call, source, np.int64(v.load_i32(call.mask_of_row, row)))
        return
    _copy(call, source)
    if _edit(call, rule, sequence, row, depth):
        for block in range(call.blocks):
            _note_maximum(call, block)


@inner
def look(call, source):
    """Scores and maxima of the logits at this address, which stay as they are."""
    if call.bfloat16 != 0 or call.vocabulary % BLOCK != 0:
        _copy(call, source)
        return
    call.scores = source
    for block in range(call.blocks):
        _note_maximum(call, block)


@inner
def _copy(call, source):
    call.scores = call.copied
    scores, maxima, vocabulary = call.copied, call.maxima, call.vocabulary
    bfloat16 = call.bfloat16 != 0
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
    if whole < call.blocks:
        for i in range(whole * BLOCK, whole * BLOCK + BLOCK, LANES):
            left = min(max(vocabulary - i, 0), LANES)
            value = v.load_bfloat16_part(source, i, left) if bfloat16 else v.load_floats_part(source, i, left)
            v.store_floats(scores, i, lanes.choose(lanes.below_count(left), value, v.spread(_LOWEST)))
        _note_maximum(call, whole)


@inner
def _copy_allowed(call, source, index):
    """The same with -inf for ids without a bit in this mask: of most blocks, where a grammar leaves few, nothing is
    read."""
    call.scores = call.copied
    scores, maxima, vocabulary = call.copied, call.maxima, call.vocabulary
    bits, lowest = call.mask_bits + index * call.mask_stride, v.spread(_LOWEST)
    bfloat16 = call.bfloat16 != 0
    whole = vocabulary // BLOCK
    for block in range(whole):
        i = block * BLOCK
        lower, upper = np.int64(v.load_i32(bits, 2 * block)), np.int64(v.load_i32(bits, 2 * block + 1))
        highest = _LOWEST
        a = b = c = d = lowest
        if (lower | upper) != 0:
            if bfloat16:
                a, b = v.load_bfloat16(source, i), v.load_bfloat16(source, i + 16)
                c, d = v.load_bfloat16(source, i + 32), v.load_bfloat16(source, i + 48)
            else:
                a, b = v.load_floats(source, i), v.load_floats(source, i + 16)
                c, d = v.load_floats(source, i + 32), v.load_floats(source, i + 48)
            a, b = lanes.choose(lower, a, lowest), lanes.choose(lower >> 16, b, lowest)
            c, d = lanes.choose(upper, c, lowest), lanes.choose(upper >> 16, d, lowest)
            highest = _maximum(a, b, c, d)
        v.store_floats(scores, i, a)
        v.store_floats(scores, i + 16, b)
        v.store_floats(scores, i + 32, c)
        v.store_floats(scores, i + 48, d)
        v.store_f32(maxima, block, highest)
    if whole < call.blocks:
        for i in range(whole * BLOCK, whole * BLOCK + BLOCK, LANES):
            left = min(max(vocabulary - i, 0), LANES)
            value = v.load_bfloat16_part(source, i, left) if bfloat16 else v.load_floats_part(source, i, left)
            kept = lanes.below_count(left)
            if left > 0:
                kept &= np.int64(v.load_i32(bits, i >> 5)) >> (i & 31)
            v.store_floats(scores, i, lanes.choose(kept, value, lowest))
        _note_maximum(call, whole)


@inlined
def _maximum(a, b, c, d):
    """NaN where there is one: it counts as the highest."""
    if lanes.has_nan(a, b) | lanes.has_nan(c, d):
        return np.float32(np.nan)
    return v.largest(v.maximum(v.maximum(a, b), v.maximum(c, d)))


@inner
def _note_maximum(call, block):
    scores, i = call.scores, block * BLOCK
    highest = _maximum(
        v.load_floats(scores, i), v.load_floats(scores, i + 16),
        v.load_floats(scores, i + 32), v.load_floats(scores, i + 48),
    )  # fmt: skip
    v.store_f32(call.maxima, block, highest)


@inner
def highest(call):
    """Of the whole row; NaN where there is one."""
    maxima, most, nans = call.maxima, v.spread(_LOWEST), 0
    # The maxima are filled up with -inf to whole vectors.
    for i in range(0, call.blocks, LANES):
        value = v.load_floats(maxima, i)
        nans |= lanes.has_nan(value, value)
        most = v.maximum(value, most)
    return np.float32(np.nan) if nans else v.largest(most)


# Edits -----------------------------------------------------------------------------------------------------


@inlined
def _penalises(rule):
    return not (rule.repetition == _ONE and rule.presence == _NOTHING and rule.frequency == _NOTHING)


@inlined
def _is_masked(call, row):
    return call.mask_of_row != 0 and v.load_i32(call.mask_of_row, row) >= 0


@inlined
def _may_be_edited(call, rule, row):
    return _is_masked(call, row) or call.bias_begins != 0 or _penalises(rule)


@inner
def _edit(call, rule, sequence, row, depth):
    """Penalties, biases, what is forbidden, what is allowed; in this order. Whether anything was edited."""
    scores = call.scores
    edited = _penalise(call, rule, sequence, row, depth)
    if call.bias_begins != 0:
        begins = call.bias_begins
        for i in range(v.load_i32(begins, sequence), v.load_i32(begins, sequence + 1)):
            at = np.int64(v.load_i32(call.bias_ids, i))
            v.store_f32(scores, at, v.load_f32(scores, at) + v.load_f32(call.bias_values, i))
            edited = True
        begins = call.forbidden_begins
        for i in range(v.load_i32(begins, row), v.load_i32(begins, row + 1)):
            v.store_f32(scores, np.int64(v.load_i32(call.forbidden_ids, i)), _LOWEST)
            edited = True
    if _is_masked(call, row):
        _mask(call, np.int64(v.load_i32(call.mask_of_row, row)))
        edited = True
    return edited


@inner
def _mask(call, index):
    scores = call.scores
    bits = call.mask_bits + index * call.mask_stride
    for i in range(0, call.vocabulary, LANES):
        kept = np.int64(v.load_i32(bits, i >> 5)) >> (i & 31)
        v.store_floats(scores, i, lanes.choose(kept, v.load_floats(scores, i), v.spread(_LOWEST)))


@inner
def _penalise(call, rule, sequence, row, depth):
    """Of every id that counts: those seen, with the drafted tokens this row stands behind added."""
    if not _penalises(rule):
        return False
    repetition, presence = rule.repetition, rule.presence
    frequency = rule.frequency
    scores, begin, end = call.scores, 0, 0
    if call.seen_begins != 0:
        begin = np.int64(v.load_i32(call.seen_begins, sequence))
        end = np.int64(v.load_i32(call.seen_begins, sequence + 1))
    seen, counts = call.seen_ids, call.seen_counts
    for i in range(begin, end):
        token, count = np.int64(v.load_i32(seen, i)), np.int64(v.load_i32(counts, i))
        score = _penalised(v.load_f32(scores, token), count, repetition, presence, frequency)
        v.store_f32(scores, token, score)
    # Drafted tokens start anew from their logit, with all their counts: few enough to look them up.
    path = np.int64(v.load_i32(call.begins, sequence))
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
    return np.int64(v.load_i32(call.drafted, np.int64(v.load_i32(call.rows, place))))


@inlined
def _logit(call, row, token):
    source = call.logits + row * call.stride
    return v.load_bf16(source, token) if call.bfloat16 != 0 else v.load_f32(source, token)


@inlined
def _penalised(score, count, repetition, presence, frequency):
    if repetition != _ONE:
        score = score / repetition if score > _NOTHING else score * repetition
    if count != 0 and (presence != _NOTHING or frequency != _NOTHING):
        score = score - (frequency * np.float32(count) + presence)
    return score


@inner
def edits_are_ids(call):
    """Of a call with edits: whether all that they name are ids of the vocabulary."""
    rows = np.int64(v.load_i32(call.begins, call.sequences))
    return (
        _are_ids(call, call.seen_begins, call.seen_ids, call.sequences)
        and _are_ids(call, call.bias_begins, call.bias_ids, call.sequences)
        and _are_ids(call, call.forbidden_begins, call.forbidden_ids, rows)
    )


@inner
def _are_ids(call, begins, ids, lists):
    found = True
    for i in range(v.load_i32(begins, 0), v.load_i32(begins, lists)):
        token = v.load_i32(ids, i)
        found &= token >= 0 and token < call.vocabulary
    return found
