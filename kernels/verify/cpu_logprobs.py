"""Log-probabilities of the model's own, as a compiled loop over the tokens asked about."""

from __future__ import annotations

import numpy as np

from kernels import cpu_vectors as v
from kernels.cpu_program import compiled
from kernels.verify import cpu_lanes as lanes
from kernels.verify.cpu_filters import likeliest, weigh
from kernels.verify.cpu_take import highest, look
from kernels.verify.cpu_words import (
    ASKED,
    ASKED_COUNT,
    ASKED_ROWS,
    ASKED_TOKENS,
    BEST_IDS,
    BEST_VALUES,
    LOGITS,
    NEAR_IDS,
    NEAR_VALUES,
    NO,
    OWN_VALUES,
    SCORES,
    STRIDE,
    VOCABULARY,
    Row,
    inlined,
    inner,
)
from kernels.verify.numbers import LN_UNIT

_FINITE = np.float32(np.finfo(np.float32).max)


@compiled
def logprobs_of_all(call):
    count, vocabulary = v.word(call, ASKED_COUNT), v.word(call, VOCABULARY)
    taken, normaliser = np.int64(-1), 0.0
    for i in range(v.word(call, ASKED)):
        row = np.int64(v.load_i32(v.word(call, ASKED_ROWS), i))
        if row != taken:
            taken, normaliser = row, _take(call, row, count, vocabulary)
        token = np.int64(v.load_i32(v.word(call, ASKED_TOKENS), i))
        v.store_f32(v.word(call, OWN_VALUES), i, _of(v.load_f32(v.word(call, SCORES), token), normaliser))
        for place in range(count):
            at = i * count + place
            v.store_i32(v.word(call, BEST_IDS), at, v.load_i32(v.word(call, NEAR_IDS), place))
            v.store_f32(v.word(call, BEST_VALUES), at, _of(v.load_f32(v.word(call, NEAR_VALUES), place), normaliser))


@inlined
def _of(score, normaliser):
    return np.float32(np.float64(score) - normaliser)


@inner
def _take(call, row, count, vocabulary):
    """Scores, and the likeliest ids at the beginning of NEAR_*; the logarithm of the sum of exp(score)."""
    look(call, v.word(call, LOGITS) + row * v.word(call, STRIDE))
    top = highest(call)
    if not abs(top) <= _FINITE:
        # Nothing can be said of it; the ids are at least some.
        for place in range(count):
            v.store_i32(v.word(call, NEAR_IDS), place, np.int32(place))
            v.store_f32(v.word(call, NEAR_VALUES), place, np.float32(np.nan))
        return np.nan
    lowest = np.float32(-np.inf)
    found = Row(np.int64(1), np.float32(1.0), top, NO, lowest, vocabulary, -_FINITE, NO, NO, NO, NO)
    if count > 0:
        likeliest(call, found, count)
    total = np.float32(weigh(call, found))
    return np.float64(top) + np.float64(v.lane(lanes.lns(v.spread(total)), 0)) - LN_UNIT
