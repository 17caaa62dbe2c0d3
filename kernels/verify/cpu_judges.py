"""The strategies of reference.py, sequence after sequence, as one compiled function.

While a sequence is judged, its part of ROWS holds the path from its root to the row at hand, and its part of TOKENS
what its strategy has to remember; both hold the answer in the end. A draft is advice: whatever `drafted` and
`parents` say, nothing is read or written outside of the sequence.
"""

from __future__ import annotations

import numpy as np

from kernels import cpu_vectors as v
from kernels.cpu_program import compiled
from kernels.verify import cpu_lanes as lanes
from kernels.verify.cpu_choice import first_of, own, residual, residual_total, spread_of
from kernels.verify.cpu_filters import filtered, is_kept, mass_of, rank_of, reaches_beyond, weigh, weighed
from kernels.verify.cpu_noise import row_key, uniform
from kernels.verify.cpu_take import highest, take
from kernels.verify.cpu_words import (
    ACCEPTED,
    BEGINS,
    DRAFTED,
    FAILED,
    NO,
    PARENTS,
    PROBS,
    PROBS_OF_ROW,
    PROBS_STRIDE,
    ROWS,
    RULES,
    SCORES,
    SEQUENCES,
    TOKENS,
    VOCABULARY,
    YES,
    Row,
    inlined,
    inner,
)
from kernels.verify.numbers import LN_UNIT
from kernels.verify.questions import (
    ACCEPT,
    ALL,
    BLOCK,
    CANDIDATES,
    DELTA,
    EPSILON,
    FLOOR,
    INVERSE,
    MATCH,
    NORMAL,
    POSITION,
    REJECTION,
    SEED,
    STRATEGY,
    TOP_K,
    TOP_P,
    TOPP,
    TYPICAL,
    WINDOW,
    WORDS,
)

_LOST = 2.0**-40
_LOWEST = np.float32(-np.inf)
_FINITE = np.float32(np.finfo(np.float32).max)
# What a strategy gives that has no path.
_FAILED = -1


@compiled
def judge_all(call):
    for sequence in range(v.word(call, SEQUENCES)):
        _judge(call, sequence)


@inner
def _judge(call, sequence):
    begin, end = _at(call, BEGINS, sequence), _at(call, BEGINS, sequence + 1)
    rule = v.word(call, RULES) + sequence * WORDS * 4
    strategy = MATCH if v.load_f32(rule, INVERSE) == np.float32(0.0) else np.int64(v.load_i32(rule, STRATEGY))
    is_chain = begin < end
    for row in range(begin + 1, end):
        is_chain &= _at(call, PARENTS, row) == row - 1
    _put(call, ROWS, begin, begin)
    # Places on the path behind its root, and the token chosen there.
    if v.load_i32(rule, ACCEPT) != NORMAL:
        depth, token = _without_asking(call, rule, sequence, begin, end)
    elif strategy == MATCH:
        depth, token = _match(call, rule, sequence, begin, end)
    elif strategy == BLOCK and is_chain:
        depth, token = _block(call, rule, sequence, begin, end)
    elif strategy in (REJECTION, BLOCK):
        depth, token = _rejection(call, rule, sequence, begin, end)
    else:
        depth, token = _members(call, rule, sequence, begin, end, strategy, is_chain)
    failed = depth == _FAILED
    v.store_i32(v.word(call, FAILED), sequence, np.int32(failed))
    v.store_i32(v.word(call, ACCEPTED), sequence, np.int32(0 if failed else depth))
    for place in range(0 if failed else depth):
        _put(call, TOKENS, begin + place, _at(call, DRAFTED, _at(call, ROWS, begin + place + 1)))
    if not failed:
        _put(call, TOKENS, begin + depth, token)
    for place in range(begin + depth + 1, end):
        _put(call, TOKENS, place, -1)
        _put(call, ROWS, place, -1)


@inlined
def _at(call, word, index):
    return np.int64(v.load_i32(v.word(call, word), index))


@inlined
def _put(call, word, index, value):
    v.store_i32(v.word(call, word), index, np.int32(value))


@inlined
def _is_token(call, child):
    token = _at(call, DRAFTED, child)
    return token >= 0 and token < v.word(call, VOCABULARY)


@inlined
def _child(call, row, after, end):
    """The first row behind `after` that hangs on this row and stands behind a token; `end`: there is none."""
    child = after + 1
    while child < end and not (_at(call, PARENTS, child) == row and _is_token(call, child)):
        child += 1
    return child


@inlined
def _probs_of(call, child):
    """The address of the distribution that a child's token was drawn from; 0: a certain draft."""
    if v.word(call, PROBS_OF_ROW) == 0 or _at(call, PROBS_OF_ROW, child) < 0:
        return 0
    return v.word(call, PROBS) + _at(call, PROBS_OF_ROW, child) * v.word(call, PROBS_STRIDE)


@inlined
def _chance(rule, begin, child):
    """For judging the drafted token behind which `child` stands."""
    return uniform(v.word(rule, SEED // 2), v.word(rule, POSITION // 2), child - begin)


# A row -----------------------------------------------------------------------------------------------------


@inner
def _look(call, rule, sequence, row, depth, with_total):
    """Take a row that is `depth` tokens behind its root, and whose path is in ROWS; with the edges of its rule."""
    found = _open(call, rule, sequence, row, depth)
    if found.valid == NO or v.load_f32(rule, INVERSE) == np.float32(0.0):
        return found
    found = filtered(call, rule, found)
    return weighed(found, weigh(call, found)) if with_total else found


@inner
def _open(call, rule, sequence, row, depth):
    """Before anything is filtered."""
    take(call, rule, sequence, row, depth)
    score, inverse = highest(call), v.load_f32(rule, INVERSE)
    greedy = inverse == np.float32(0.0)
    if greedy:
        inverse = np.float32(1.0)
    top = score * inverse
    # NaN is neither.
    valid = np.int64(abs(score) <= _FINITE and abs(top) <= _FINITE)
    vocabulary = v.word(call, VOCABULARY)
    found = Row(valid, inverse, top, NO, _LOWEST, vocabulary, -_FINITE, NO, NO, NO, NO)
    if not valid:
        return found
    first = first_of(call, top, inverse)
    if greedy:
        return Row(valid, inverse, top, first, top, first, -_FINITE, np.int64(1 << 40), NO, NO, NO)
    k0, k1, k2 = row_key(v.word(rule, SEED // 2), v.word(rule, POSITION // 2) + depth)
    return Row(valid, inverse, top, first, _LOWEST, vocabulary, -_FINITE, NO, k0, k1, k2)


# Strategies ------------------------------------------------------------------------------------------------


@inner
def _without_asking(call, rule, sequence, begin, end):
    row, depth = begin, NO
    while True:
        found = _look(call, rule, sequence, row, depth, NO)
        if found.valid == NO:
            return _FAILED, 0
        child = _child(call, row, row, end) if v.load_i32(rule, ACCEPT) == ALL else end
        if child == end:
            return depth, own(call, found, NO, NO)
        row, depth = child, depth + 1
        _put(call, ROWS, begin + depth, row)


@inner
def _own_of(call, rule, found):
    """The token that a row chooses which isn't filtered yet. Under top_p alone, what the whole row would choose is
    mostly inside: then it is also what the inside chooses, and nobody needs to know where the edge is."""
    if v.load_f32(rule, INVERSE) == np.float32(0.0):
        return found.first
    others = v.load_i32(rule, TOP_K) > 0 or v.load_f32(rule, FLOOR) > _LOWEST
    if v.load_f32(rule, TOP_P) < np.float32(1.0) and not others:
        token = own(call, found, NO, NO)
        if reaches_beyond(call, rule, found, token):
            return token
    return own(call, filtered(call, rule, found), NO, NO)


@inner
def _match(call, rule, sequence, begin, end):
    row, depth = begin, NO
    while True:
        found = _open(call, rule, sequence, row, depth)
        if found.valid == NO:
            return _FAILED, 0
        token = _own_of(call, rule, found)
        child = _child(call, row, row, end)
        while child < end and _at(call, DRAFTED, child) != token:
            child = _child(call, row, child, end)
        if child == end:
            return depth, token
        row, depth = child, depth + 1
        _put(call, ROWS, begin + depth, row)


@inner
def _rejection(call, rule, sequence, begin, end):
    row, depth = begin, NO
    while True:
        found = _look(call, rule, sequence, row, depth, YES)
        if found.valid == NO:
            return _FAILED, 0
        child, token = _judge_children(call, rule, found, row, depth, begin, end)
        if child == end:
            return depth, token
        row, depth = child, depth + 1
        _put(call, ROWS, begin + depth, row)


@inner
def _judge_children(call, rule, found, row, depth, begin, end):
    """The child that stands, or `end` and what is chosen then: of what is left when those refused are taken away.

    Those refused are noted in TOKENS behind the path, where there is a place for every child.
    """
    refused, count, left = v.word(call, TOKENS) + (begin + depth + 1) * 4, NO, found.total
    child = _child(call, row, row, end)
    while child < end:
        token = _at(call, DRAFTED, child)
        mass = mass_of(call, found, token)
        for i in range(count):
            if v.load_i32(refused, i) == token:
                mass = 0
        chance, probs = _chance(rule, begin, child), _probs_of(call, child)
        if probs != 0:
            if chance * np.float64(v.load_f32(probs, token)) * np.float64(left) < np.float64(mass):
                return child, 0
            return end, _sample_residual(call, found, probs, np.float32(1.0))
        if chance * np.float64(left) < np.float64(mass):
            return child, 0
        v.store_i32(refused, count, np.int32(token))
        count, left = count + 1, left - mass
        child = _child(call, row, child, end)
    return end, own(call, found, refused, count)


@inner
def _sample_residual(call, found, probs, weight):
    token = residual(call, found, v.word(call, VOCABULARY), probs, weight)
    return own(call, found, NO, NO) if token < 0 else token


@inner
def _block(call, rule, sequence, begin, end):
    """Row after row: whether a place ends the draft is known when the row behind it was looked at."""
    found = _look(call, rule, sequence, begin, NO, YES)
    if found.valid == NO:
        return _FAILED, 0
    place, stands, joint, joint_there = NO, NO, 1.0, 1.0
    while True:
        row = begin + place
        goes_on = row + 1 < end and _is_token(call, row + 1)
        following, rest = 1.0, 0.0
        if goes_on:
            following = _joint(call, found, row + 1, joint)
            rest = _left_of(call, found, row + 1, joint) if place > 0 else 0.0
            _put(call, ROWS, row + 1, row + 1)
            found = _look(call, rule, sequence, row + 1, place + 1, YES)
            goes_on = found.valid != NO
        if place > 0:
            here = joint
            if goes_on:
                here = rest / (rest + 1.0 - joint) if rest > 0.0 else 0.0
            if _chance(rule, begin, row) < here:
                stands, joint_there = place, joint
        if not goes_on:
            break
        place, joint = place + 1, following
    found = _look(call, rule, sequence, begin + stands, stands, YES)
    if stands == place:
        return stands, own(call, found, NO, NO)
    behind = begin + stands + 1
    probs = _probs_of(call, behind)
    if probs != 0:
        return stands, _sample_residual(call, found, probs, np.float32(joint_there))
    return stands, own(call, found, v.word(call, DRAFTED) + behind * 4, YES)


@inner
def _joint(call, found, child, joint):
    """min(1, joint * target_prob / draft_prob) of the token behind which `child` stands."""
    token, probs = _at(call, DRAFTED, child), _probs_of(call, child)
    target_prob = np.float64(mass_of(call, found, token)) / np.float64(found.total)
    draft_prob = 1.0 if probs == 0 else np.float64(v.load_f32(probs, token))
    if target_prob == 0.0:
        return 0.0
    return min(1.0, joint * target_prob / draft_prob) if draft_prob > 0.0 else 1.0


@inner
def _left_of(call, found, child, joint):
    """The sum of max(joint * target_probs - draft_probs, 0) over the vocabulary."""
    probs = _probs_of(call, child)
    if probs == 0:
        certain = np.float64(mass_of(call, found, _at(call, DRAFTED, child))) / np.float64(found.total)
        return joint * (1.0 - certain)
    return np.float64(residual_total(call, found, v.word(call, VOCABULARY), probs, np.float32(joint))) * _LOST


@inner
def _members(call, rule, sequence, begin, end, strategy, is_chain):
    """TOKENS: of a row that may stand, 1 + its depth; else 0."""
    for row in range(begin, end):
        _put(call, TOKENS, row, np.int64(row == begin))
    last, deepest, with_total = begin, NO, np.int64(strategy == TYPICAL)
    found = _look(call, rule, sequence, begin, NO, with_total)
    if found.valid == NO:
        return _FAILED, 0
    for row in range(begin, end):
        depth = _at(call, TOKENS, row) - 1
        if depth < 0:
            continue
        if row > begin:
            _path_to(call, begin, row, depth)
            found = _look(call, rule, sequence, row, depth, with_total)
            if found.valid == NO:
                _put(call, TOKENS, row, 0)
                continue
        if depth > deepest:
            last, deepest = row, depth
        _mark_members(call, rule, found, row, depth, end, strategy)
    if strategy == TOPP and is_chain:
        last = _after_window(call, rule, sequence, begin, end, last)
        deepest = last - begin
    _path_to(call, begin, last, deepest)
    return deepest, own(call, _look(call, rule, sequence, last, deepest, NO), NO, NO)


@inner
def _path_to(call, begin, row, depth):
    for place in range(depth, -1, -1):
        _put(call, ROWS, begin + place, row)
        row = _at(call, PARENTS, row)


@inner
def _mark_members(call, rule, found, row, depth, end, strategy):
    """The children that the row finds good enough may stand."""
    child = _child(call, row, row, end)
    if child == end:
        return
    threshold, whole = 0.0, 0.0
    if strategy == TYPICAL:
        # ln(total / UNIT), and the entropy: that minus the mean of `below`.
        whole = np.float64(_ln(np.float32(found.total)) - np.float32(LN_UNIT))
        mean = np.float64(spread_of(call, found)) / np.float64(found.total)
        delta = np.float64(v.load_f32(rule, DELTA)) - (whole - mean)
        threshold = min(np.float64(v.load_f32(rule, EPSILON)), delta)
    while child < end:
        token = _at(call, DRAFTED, child)
        if is_kept(call, found, token) and _good_enough(call, rule, found, token, strategy, threshold, whole):
            _put(call, TOKENS, child, depth + 2)
        child = _child(call, row, child, end)


@inlined
def _ln(x):
    return v.lane(lanes.lns(v.spread(x)), 0)


@inner
def _good_enough(call, rule, found, token, strategy, threshold, whole):
    if strategy == TYPICAL:
        below = v.load_f32(v.word(call, SCORES), token) * found.inverse - found.top
        return np.float64(below) - whole > threshold
    return rank_of(call, found, token) < v.load_i32(rule, CANDIDATES)


@inner
def _after_window(call, rule, sequence, begin, end, last):
    """The draft goes on with the second likeliest token, and all of a window behind it are the likeliest."""
    window = np.int64(v.load_i32(rule, WINDOW))
    if window == 0 or last + 1 + window >= end:
        return last
    for row in range(last, last + 1 + window):
        _path_to(call, begin, row, row - begin)
        found = _look(call, rule, sequence, row, row - begin, NO)
        if found.valid == NO or not _is_token(call, row + 1):
            return last
        if rank_of(call, found, _at(call, DRAFTED, row + 1)) != (1 if row == last else 0):
            return last
    behind = last + 1 + window
    _path_to(call, begin, behind, behind - begin)
    return behind if _look(call, rule, sequence, behind, behind - begin, NO).valid != NO else last
