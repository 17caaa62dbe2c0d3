"""What top_k, top_p and min_p leave of a row, and the masses of it, without sorting the vocabulary.

Both edges are the same question: in the order "likeliest first, equal ones by id", where each id weighs 1 or its
mass, which is the last one that has less than `reach` before it? What lies near the top is collected (a threshold
that many blocks of ids reach), and narrowed down to the edge as quickselect does. Where that isn't enough, the
threshold is lowered and then halved in, by adding up all weights above it, until few enough lie between two
thresholds. Weights are whole numbers, so it is the reference's edge exactly.
"""

from __future__ import annotations

import numpy as np

from kernels import cpu_vectors as v
from kernels.cpu_vectors import LANES
from kernels.verify import cpu_lanes as lanes
from kernels.verify.cpu_call import BLOCK, NO, Row, inlined, inner
from kernels.verify.numbers import LEAST_EXPONENT, UNIT

_INFINITE = np.float32(np.inf)
_FINITE = np.float32(np.finfo(np.float32).max)
_NOTHING = np.float32(0.0)
_UNIT = np.float32(UNIT)
# Blocks that reach the first threshold, and what is then left between two thresholds.
_BLOCKS_NEAR = 64
_NARROW = 1024
# Fewer are put in order one by one.
_FEW = 16


@inner
def edged(row, edge, edge_id, floor):
    return Row(
        row.call, row.valid, row.inverse, row.top, row.first, edge, edge_id, floor, row.total, row.k0, row.k1, row.k2
    )


@inner
def weighed(row, total):
    return Row(
        row.call, row.valid, row.inverse, row.top, row.first, row.edge, row.edge_id, row.floor, total, row.k0, row.k1,
        row.k2,
    )  # fmt: skip


@inner
def filtered(call, rule, row):
    """The row with the edges of its rule."""
    if rule.top_k > 0 and rule.top_k < call.vocabulary:
        edge, edge_id = _edge(call, row, False, np.float64(rule.top_k))
        row = edged(row, edge, edge_id, row.floor)
    if rule.top_p < np.float32(1.0):
        reach = np.float64(rule.top_p) * np.float64(weigh(call, row))
        if reach > 0.0:
            edge, edge_id = _edge(call, row, True, reach)
        else:
            edge, edge_id = row.top, row.first
        row = edged(row, edge, edge_id, row.floor)
    if rule.floor > _NOTHING:
        return edged(row, row.top, row.first, row.floor)
    return edged(row, row.edge, row.edge_id, max(rule.floor, row.floor))


# What is left ----------------------------------------------------------------------------------------------


@inlined
def lowest_edge(row):
    """No id with a mass, and none that is left, lies lower (subtracting rounds, but never past a neighbour)."""
    return max(row.edge, row.top + np.float32(LEAST_EXPONENT - 1.0))


@inlined
def kept_bits(row, z, first_id):
    """Which of 16 ids are left."""
    edge = v.spread(row.edge)
    kept = lanes.at_least(z, edge)
    if first_id + LANES > row.edge_id + 1:
        # Behind the edge's own id nothing stands that equals it.
        kept = lanes.above(z, edge) | (kept & lanes.below_count(max(row.edge_id - first_id + 1, 0)))
    return kept & lanes.at_least(z - v.spread(row.top), v.spread(row.floor))


@inlined
def is_kept(call, row, token):
    z = v.load_f32(call.scores, token) * row.inverse
    return (z > row.edge or (z == row.edge and token <= row.edge_id)) and z - row.top >= row.floor


@inner
def weigh(call, row):
    """The sum of all masses that are left. FRACTIONS has what they are cut from (mass = as_mass(fraction)), in blocks
    that reach `lowest_edge`."""
    scores, fractions, maxima = call.scores, call.fractions, call.maxima
    lowest, inverse, top = lowest_edge(row), v.spread(row.inverse), v.spread(row.top)
    total, high, low, sums = 0, v.int_zeros(), v.int_zeros(), 0
    for block in range(call.blocks):
        if v.load_f32(maxima, block) * row.inverse < lowest:
            continue
        for i in range(block * BLOCK, block * BLOCK + BLOCK, LANES):
            z = v.load_floats(scores, i) * inverse
            fraction = lanes.fractions(z - top, kept_bits(row, z, i))
            part = lanes.upper(fraction)
            high, low = high + part, low + lanes.lower(fraction, part)
            v.store_floats(fractions, i, fraction)
        total, high, low, sums = before_overflow(total, high, low, sums + BLOCK // LANES)
    return total + whole_sum(high, low)


@inner
def mass_of(call, row, token):
    """Once the row is weighed."""
    if v.load_f32(call.scores, token) * row.inverse < lowest_edge(row):
        return 0
    return _as_mass(v.load_f32(call.fractions, token))


@inlined
def before_overflow(total, high, low, sums):
    """Sums in lanes of 32 bits go to the total while they fit."""
    full = sums == lanes.MOST_SUMS
    if full:
        total, high, low = total + whole_sum(high, low), v.int_zeros(), v.int_zeros()
    return total, high, low, 0 if full else sums


@inlined
def whole_sum(high, low):
    """Of sums of `upper` and of `lower`."""
    return lanes.int_total(high) * lanes.HALF_UNIT + lanes.int_total(low)


@inlined
def _as_mass(fraction):
    return np.int64(fraction * _UNIT)


@inner
def reaches_beyond(call, rule, row, token):
    """Whether top_p of the whole row certainly leaves this id: less than its reach comes before it. Asks for one pass
    over the masses, where the edge itself takes several."""
    if token == row.first:
        return True
    reach = np.float64(rule.top_p) * np.float64(weigh(call, row))
    return np.float64(_mass_before(call, row, token)) < reach


@inner
def _mass_before(call, row, token):
    """Of all ids that are likelier, once the row is weighed."""
    scores, fractions, maxima = call.scores, call.fractions, call.maxima
    own, inverse, none = v.load_f32(scores, token) * row.inverse, v.spread(row.inverse), v.zeros()
    total, owns, lowest = 0, v.spread(own), max(own, lowest_edge(row))
    for block in range(call.blocks):
        if v.load_f32(maxima, block) * row.inverse < lowest:
            continue
        for i in range(block * BLOCK, block * BLOCK + BLOCK, LANES):
            z = v.load_floats(scores, i) * inverse
            bits = lanes.above(z, owns) | (lanes.equal(z, owns) & lanes.below_count(min(max(token - i, 0), LANES)))
            if bits:
                fraction = lanes.choose(bits, v.load_floats(fractions, i), none)
                part = lanes.upper(fraction)
                total += whole_sum(part, lanes.lower(fraction, part))
    return total


@inner
def rank_of(call, row, token):
    """How many ids are likelier."""
    scores, maxima, inverse = call.scores, call.maxima, v.spread(row.inverse)
    own = v.load_f32(scores, token) * row.inverse
    before, owns = 0, v.spread(own)
    for block in range(call.blocks):
        if v.load_f32(maxima, block) * row.inverse < own:
            continue
        for i in range(block * BLOCK, block * BLOCK + BLOCK, LANES):
            z = v.load_floats(scores, i) * inverse
            before += lanes.count_of(lanes.above(z, owns))
            before += lanes.count_of(lanes.equal(z, owns) & lanes.below_count(min(max(token - i, 0), LANES)))
    return before


# The edge --------------------------------------------------------------------------------------------------


@inner
def _edge(call, row, by_mass, reach):
    """z and id of the last one that has less than `reach` > 0 before it. By mass: once the row is weighed."""
    bottom = lowest_edge(row) if by_mass else max(row.edge, -_FINITE)
    first = max(_reached_by(call, row, min(_BLOCKS_NEAR, call.blocks)), bottom)
    count, weight = _collect(call, row, by_mass, first, _INFINITE)
    if np.float64(weight) >= reach:
        return _edge_among(call, count, NO, reach)
    high, before, count_high = first, weight, count
    low, step = first, np.float32(1.0)
    while low > bottom:
        low, step = max(first - step, bottom), step + step
        count, weight = _above(call, row, by_mass, low)
        if np.float64(weight) >= reach:
            break
        high, before, count_high = low, weight, count
    if np.float64(weight) < reach:
        # All that can be.
        return row.edge, row.edge_id
    while count - count_high > _NARROW:
        middle = high - (high - low) * np.float32(0.5)
        if not (low < middle and middle < high):
            break
        many, weight = _above(call, row, by_mass, middle)
        if np.float64(weight) >= reach:
            low, count = middle, many
        else:
            high, before, count_high = middle, weight, many
    count, _ = _collect(call, row, by_mass, low, high)
    return _edge_among(call, count, before, reach)


@inner
def _reached_by(call, row, wanted):
    """A threshold that at least so many blocks reach, and not many more where that is soon found."""
    step, reached = np.float32(1.0), row.top
    while _blocks_at(call, row, reached) < wanted:
        reached, step = row.top - step, step + step
        if reached < -_FINITE:
            return -_FINITE
    missed = min(reached + step * np.float32(0.25), row.top)
    for _ in range(8):
        middle = reached + (missed - reached) * np.float32(0.5)
        if _blocks_at(call, row, middle) >= wanted:
            reached = middle
        else:
            missed = middle
    return reached


@inner
def _blocks_at(call, row, threshold):
    maxima, inverse, least = call.maxima, v.spread(row.inverse), v.spread(threshold)
    count = 0
    for i in range(0, call.blocks, LANES):
        count += lanes.count_of(lanes.at_least(v.load_floats(maxima, i) * inverse, least))
    return count


@inner
def _collect(call, row, by_mass, low, high):
    """What has low <= z < high goes to NEAR_*, by id; how many there are, and their weight."""
    scores, fractions, maxima = call.scores, call.fractions, call.maxima
    ids, values, weights = call.near_ids, call.near_values, call.near_weights
    inverse, least, most = v.spread(row.inverse), v.spread(low), v.spread(high)
    count, total = 0, 0
    for block in range(call.blocks):
        if v.load_f32(maxima, block) * row.inverse < low:
            continue
        for i in range(block * BLOCK, block * BLOCK + BLOCK, LANES):
            z = v.load_floats(scores, i) * inverse
            bits = lanes.at_least(z, least) & ~lanes.at_least(z, most)
            while bits:
                token = i + lanes.lowest(bits)
                bits &= bits - 1
                weight = _as_mass(v.load_f32(fractions, token)) if by_mass else 1
                v.store_i32(ids, count, np.int32(token))
                v.store_f32(values, count, v.load_f32(scores, token) * row.inverse)
                v.store_i64(weights, count, weight)
                count += 1
                total += weight
    return count, total


@inner
def _above(call, row, by_mass, threshold):
    """How many have z >= threshold, and their weight."""
    scores, fractions, maxima = call.scores, call.fractions, call.maxima
    inverse, least = v.spread(row.inverse), v.spread(threshold)
    none = v.zeros()
    count, total, high, low, sums = 0, 0, v.int_zeros(), v.int_zeros(), 0
    for block in range(call.blocks):
        if v.load_f32(maxima, block) * row.inverse < threshold:
            continue
        for i in range(block * BLOCK, block * BLOCK + BLOCK, LANES):
            bits = lanes.at_least(v.load_floats(scores, i) * inverse, least)
            count += lanes.count_of(bits)
            if by_mass:
                fraction = lanes.choose(bits, v.load_floats(fractions, i), none)
                part = lanes.upper(fraction)
                high, low = high + part, low + lanes.lower(fraction, part)
        total, high, low, sums = before_overflow(total, high, low, sums + BLOCK // LANES)
    if not by_mass:
        return count, count
    return count, total + whole_sum(high, low)


@inner
def _edge_among(call, count, before, reach):
    """The edge is one of those collected; `before` weighs what comes before all of them."""
    begin, end = NO, count
    while end - begin > _FEW:
        pivot = _part(call, begin, end)
        ahead = before
        for i in range(begin, pivot):
            ahead += v.load_i64(call.near_weights, i)
        following = ahead + v.load_i64(call.near_weights, pivot)
        if not np.float64(ahead) < reach:
            end = pivot
        elif np.float64(following) < reach:
            begin, before = pivot + 1, following
        else:
            begin, end = pivot, pivot + 1
    _sort(call, begin, end)
    edge = begin
    for i in range(begin, end):
        if not np.float64(before) < reach:
            break
        edge = i
        before += v.load_i64(call.near_weights, i)
    return v.load_f32(call.near_values, edge), np.int64(v.load_i32(call.near_ids, edge))


@inlined
def _comes_before(call, a, b):
    values, ids = call.near_values, call.near_ids
    first, second = v.load_f32(values, a), v.load_f32(values, b)
    return first > second or (first == second and v.load_i32(ids, a) < v.load_i32(ids, b))


@inlined
def _swap(call, a, b):
    values, ids, weights = call.near_values, call.near_ids, call.near_weights
    value, token, weight = v.load_f32(values, a), v.load_i32(ids, a), v.load_i64(weights, a)
    v.store_f32(values, a, v.load_f32(values, b))
    v.store_i32(ids, a, v.load_i32(ids, b))
    v.store_i64(weights, a, v.load_i64(weights, b))
    v.store_f32(values, b, value)
    v.store_i32(ids, b, token)
    v.store_i64(weights, b, weight)


@inner
def _part(call, begin, end):
    """Put what comes before some pivot before it; where the pivot then is."""
    middle, last = (begin + end) // 2, end - 1
    # The pivot is the middle one of three, and goes to the end for the while.
    if _comes_before(call, middle, begin):
        _swap(call, middle, begin)
    if _comes_before(call, last, begin):
        _swap(call, last, begin)
    if _comes_before(call, middle, last):
        _swap(call, middle, last)
    at = begin
    for i in range(begin, last):
        if _comes_before(call, i, last):
            _swap(call, i, at)
            at += 1
    _swap(call, at, last)
    return at


@inner
def _sort(call, begin, end):
    """Shell's: in order already for a distance, then for a smaller one."""
    gap = 1
    while gap < (end - begin) // 3:
        gap = gap * 3 + 1
    while gap > 0:
        for i in range(begin + gap, end):
            at = i
            while at >= begin + gap and _comes_before(call, at, at - gap):
                _swap(call, at, at - gap)
                at -= gap
        gap //= 3


@inner
def likeliest(call, row, count):
    """The `count` likeliest ids, in order, at the beginning of NEAR_*."""
    edge = row.edge
    if count < call.vocabulary:
        edge, _ = _edge(call, row, False, np.float64(count))
    found, _ = _collect(call, row, False, edge, _INFINITE)
    _sort(call, NO, found)
