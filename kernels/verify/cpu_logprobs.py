"""Log-probabilities of the model's own, as a compiled loop over the tokens asked about."""

from __future__ import annotations

import numpy as np

from kernels import cpu_vectors as v
from kernels.cpu_program import compiled
from kernels.verify import cpu_lanes as lanes
from kernels.verify.cpu_call import NO, Row, call_at, inlined, inner
from kernels.verify.cpu_filters import likeliest, weigh
from kernels.verify.cpu_take import highest, look
from kernels.verify.numbers import LN_UNIT

_FINITE = np.float32(np.finfo(np.float32).max)


@compiled
def logprobs_of_all(address):
    call = call_at(address)
    count, vocabulary = call.asked_count, call.vocabulary
    taken, normaliser = np.int64(-1), 0.0
    for i in range(call.asked):
        row = np.int64(v.load_i32(call.asked_rows, i))
        if row != taken:
            taken, normaliser = row, _take(call, row, count, vocabulary)
        token = np.int64(v.load_i32(call.asked_tokens, i))
        v.store_f32(call.own_values, i, _of(v.load_f32(call.scores, token), normaliser))
        for place in range(count):
            at = i * count + place
            v.store_i32(call.best_ids, at, v.load_i32(call.near_ids, place))
            v.store_f32(call.best_values, at, _of(v.load_f32(call.near_values, place), normaliser))


@inlined
def _of(score, normaliser):
    return np.float32(np.float64(score) - normaliser)


@inner
def _take(call, row, count, vocabulary):
    """Scores, and the likeliest ids at the beginning of NEAR_*; the logarithm of the sum of exp(score)."""
    look(call, call.logits + row * call.stride)
    top = highest(call)
    if not abs(top) <= _FINITE:
        # Nothing can be said of it; the ids are at least some.
        for place in range(count):
            v.store_i32(call.near_ids, place, np.int32(place))
            v.store_f32(call.near_values, place, np.float32(np.nan))
        return np.nan
    lowest = np.float32(-np.inf)
    found = Row(NO, True, np.float32(1.0), top, NO, lowest, vocabulary, -_FINITE, NO, NO, NO, NO)
    if count > 0:
        likeliest(call, found, count)
    total = np.float32(weigh(call, found))
    return np.float64(top) + np.float64(v.lane(lanes.lns(v.spread(total)), 0)) - LN_UNIT
