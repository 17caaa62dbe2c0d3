"""The facts of rows that strategies.py decides on, as compiled loops, and the call that judges sequence after sequence.

While a sequence is judged, its part of `rows` holds the path from its root to the row at hand, and its part of
`tokens` the strategy's notes; both hold the answer in the end. A draft is advice: whatever `drafted` and `parents`
say, nothing is read or written outside of the sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels import cpu_vectors as v
from kernels.cpu_program import compiled
from kernels.verify import cpu_filters as filters
from kernels.verify import cpu_lanes as lanes
from kernels.verify import noise
from kernels.verify.cpu_call import NO, Row, call_at, inlined, inner, ints_at, methods, rule_at
from kernels.verify.cpu_choice import chosen, first_of, rest_total, sampled_rest, spread_of
from kernels.verify.cpu_take import edits_are_ids, highest, take
from kernels.verify.numbers import LN_UNIT, UNIT
from kernels.verify.questions import RULE
from kernels.verify.strategies import FAILED, judge

_UNITS = 2.0**-40
_LOWEST = np.float32(-np.inf)
_FINITE = np.float32(np.finfo(np.float32).max)
_RULE_BYTES = RULE.itemsize


class Sequence(NamedTuple):
    """One sequence's rows, its rule, and its draft: what strategies.py lists."""

    address: int  # of the call
    call: Any
    rule: Any
    number: int
    begin: int
    end: int
    vocabulary: int
    drafted: Any
    parents: Any
    notes: Any
    rows: Any


@compiled
def judge_all(address):
    """Whether all ids to edit are in the vocabulary; if not, nothing is judged."""
    call = call_at(address)
    sound = call.bias_begins == 0 or edits_are_ids(call)
    for number in range(call.sequences if sound else 0):
        _judge(address, call, number)
    return sound


@inner
def _judge(address, call, number):
    begin, end = _begin(call, number), _begin(call, number + 1)
    sequence = Sequence(
        address, call, rule_at(call.rules + number * _RULE_BYTES), number, begin, end, call.vocabulary,
        ints_at(call.drafted), ints_at(call.parents), ints_at(call.tokens + begin * 4), ints_at(call.rows),
    )  # fmt: skip
    last, token = judge(sequence)
    failed = last == FAILED
    depth = NO if failed else _path_to(sequence, last)
    v.store_i32(call.failed, number, np.int32(failed))
    v.store_i32(call.accepted, number, np.int32(depth))
    tokens, behind = sequence.notes, 0 if failed else depth + 1
    for place in range(depth):
        tokens[place] = sequence.drafted[sequence.rows[begin + place + 1]]
    if not failed:
        tokens[depth] = token
    for place in range(behind, end - begin):
        tokens[place] = -1
        sequence.rows[begin + place] = -1


@inlined
def _begin(call, number):
    return np.int64(v.load_i32(call.begins, number))


@inner
def _path_to(sequence, row):
    """The depth of a row; the path to it is in `rows`, from the sequence's first on."""
    depth, at = 0, row
    while at != sequence.begin:
        at, depth = sequence.parents[at], depth + 1
    for place in range(sequence.begin + depth, sequence.begin - 1, -1):
        sequence.rows[place] = row
        row = sequence.parents[row]
    return depth


@inner
def _probs_of(sequence, row):
    """The address of the distribution that a row's token was drawn from; 0: a certain draft."""
    call = sequence.call
    if call.probs_of_row == 0 or v.load_i32(call.probs_of_row, row) < 0:
        return 0
    return call.probs + v.load_i32(call.probs_of_row, row) * call.probs_stride


# Methods of a sequence -------------------------------------------------------------------------------------


@inner
def _open(sequence, row):
    """A row before anything is filtered."""
    call, rule = sequence.call, sequence.rule
    depth = _path_to(sequence, row)
    take(call, rule, sequence.number, row, depth)
    greedy = rule.inverse == np.float32(0.0)
    score, inverse = highest(call), np.float32(1.0) if greedy else rule.inverse
    top = score * inverse
    # NaN is neither.
    valid = abs(score) <= _FINITE and abs(top) <= _FINITE
    first = first_of(call, top, inverse) if valid else NO
    if greedy:
        return Row(sequence.address, valid, inverse, top, first, top, first, -_FINITE, np.int64(UNIT), NO, NO, NO)
    k0, k1, k2 = noise.row_key(rule.seed, rule.position + depth)
    return Row(
        sequence.address, valid, inverse, top, first, _LOWEST, sequence.vocabulary, -_FINITE, NO, k0, k1, k2
    )  # fmt: skip


def look(sequence, row, masses):
    found = _open(sequence, row)
    if not found.valid or sequence.rule.inverse == np.float32(0.0):
        return found
    found = filters.filtered(sequence.call, sequence.rule, found)
    return filters.weighed(found, filters.weigh(sequence.call, found)) if masses else found


def own(sequence, row):
    found, call, rule = _open(sequence, row), sequence.call, sequence.rule
    if not found.valid:
        return -1
    if rule.inverse == np.float32(0.0):
        return found.first
    # Under top_p alone, what the whole row would choose is mostly inside: then it is also what the inside chooses, and
    # nobody needs to know where the edge is.
    if rule.top_p < np.float32(1.0) and rule.top_k <= 0 and rule.floor == _LOWEST:
        token = chosen(call, found, sequence.notes, NO)
        if filters.reaches_beyond(call, rule, found, token):
            return token
    return chosen(call, filters.filtered(call, rule, found), sequence.notes, NO)


def own_without(sequence, found, count):
    return chosen(sequence.call, found, sequence.notes, count)


def uniform(sequence, row):
    return noise.uniform(sequence.rule.seed, sequence.rule.position, row - sequence.begin)


def is_certain(sequence, row):
    return _probs_of(sequence, row) == 0


def draft_prob(sequence, row):
    probs = _probs_of(sequence, row)
    return 1.0 if probs == 0 else np.float64(v.load_f32(probs, sequence.drafted[row]))


def rest(sequence, found, row, joint):
    return np.float64(rest_total(sequence.call, found, _probs_of(sequence, row), np.float32(joint))) * _UNITS


def residual(sequence, found, row, weight):
    token = sampled_rest(sequence.call, found, _probs_of(sequence, row), np.float32(weight))
    return chosen(sequence.call, found, sequence.notes, NO) if token < 0 else token


methods(Sequence, look, own, own_without, uniform, is_certain, draft_prob, rest, residual)


# Methods of a row ------------------------------------------------------------------------------------------


def mass(found, token):
    return filters.mass_of(call_at(found.call), found, token)


def rank(found, token):
    return filters.rank_of(call_at(found.call), found, token)


def below(found, token):
    return np.float64(v.load_f32(call_at(found.call).scores, token) * found.inverse - found.top)


def allows(found, token):
    return filters.is_kept(call_at(found.call), found, token)


def whole(found):
    return np.float64(v.lane(lanes.lns(v.spread(np.float32(found.total))), 0) - np.float32(LN_UNIT))


def mean_below(found):
    return np.float64(spread_of(call_at(found.call), found)) / np.float64(found.total)


methods(Row, mass, rank, below, allows, whole, mean_below)
