"""The token that a row chooses: the arg-max of z + noise over what is left of it, without computing most noise.

With w as in noise.py, the noise of an id is -ln(-ln(1 - w)), and that is at most -ln(w), since -ln(1 - w) >= w.
So z + noise can only reach the best score so far where

    w <= exp(z - best)

which is tested on the hash, with a bound that is never less than that exponential (`reaches`), `best` lowered by a
margin: 0.001 for what rounding does to w, to the noise (its two logarithms err by less than 1e-5 where it
counts: z - best >= -22.2, beyond which no w is small enough) and to the bound itself, and |best| / 2**20 for what it
does to z + noise and to z - best: those are sums of numbers no larger than |best| + 25, and each rounding moves them
by 2**-24 of that at most, four of them in all. Some ten ids of 49152 pass; their noise is computed and decides. The
search begins with the score of the likeliest id, which is rarely far from the best one.
"""

from __future__ import annotations

import numpy as np

from kernels import cpu_vectors as v
from kernels.cpu_vectors import LANES
from kernels.verify import cpu_lanes as lanes
from kernels.verify.cpu_call import BLOCK, inlined, inner
from kernels.verify.cpu_filters import before_overflow, is_kept, kept_bits, lowest_edge, whole_sum

# Where a float32 has its exponent.
_EXPONENT = 2.0**23
_LOG2_E = 1.4426950408889634
# The largest noise there is: w = 2**-32.
_MOST_NOISE = 22.2
# Beyond it, z + noise is z.
_NOISELESS = 1e12
_LOWEST = np.float32(-np.inf)
_LOST = np.float32(2.0**-40)


@inlined
def _margin(best):
    return 0.001 + abs(best) * 2.0**-20


@inner
def chosen(call, row, refused, count):
    """The arg-max over what is left but for the first `count` ids of `refused`; 0 where nothing is left.

    Of a greedy row all but the likeliest id is gone.
    """
    winner = row.first if count == 0 else _likeliest_but(call, row, refused, count)
    if winner < 0 or not is_kept(call, row, winner):
        return 0
    if row.edge == row.top and row.edge_id == row.first:
        return winner
    best = np.float64(_score(call, row, winner))
    if abs(best) > _NOISELESS:
        return winner
    return _search(call, row, refused, count, best, winner)


@inner
def _search(call, row, refused, count, best, winner):
    scores, maxima, inverse = call.scores, call.maxima, v.spread(row.inverse)
    factor = np.float32(np.float64(row.inverse) * _LOG2_E * _EXPONENT)
    least, offset = _limits(row, best)
    for block in range(call.blocks):
        if v.load_f32(maxima, block) * row.inverse < least:
            continue
        for i in range(block * BLOCK, block * BLOCK + BLOCK, LANES):
            x = v.load_floats(scores, i)
            hashed = lanes.hashes(lanes.ids_from(i), row.k0, row.k1, row.k2)
            bits = lanes.at_least(lanes.reaches(x, factor, offset), lanes.chances(hashed))
            if bits:
                z = x * inverse
                bits &= kept_bits(row, z, i)
                noisy = z + lanes.gumbels(hashed)
                while bits:
                    at = lanes.lowest(bits)
                    bits &= bits - 1
                    score = np.float64(v.lane(noisy, at))
                    better = score > best or (score == best and i + at < winner)
                    if better and not _is_among(i + at, refused, count):
                        best, winner = score, i + at
                        least, offset = _limits(row, best)
    return winner


@inlined
def _limits(row, best):
    """The lowest z that could still win, and the offset of `reaches`, which is in the units of `chances`."""
    lowered = best - _margin(best)
    least = max(np.float32(lowered - _MOST_NOISE - _margin(best)), row.edge)
    return least, np.float32((127 + 31 - lowered * _LOG2_E) * _EXPONENT)


@inner
def _score(call, row, token):
    first = token & -LANES
    z = v.load_floats(call.scores, first) * v.spread(row.inverse)
    noise = lanes.gumbels(lanes.hashes(lanes.ids_from(first), row.k0, row.k1, row.k2))
    return v.lane(z + noise, token - first)


@inner
def _is_among(token, refused, count):
    found = False
    for i in range(count):
        found |= refused[i] == token
    return found


@inner
def _likeliest_but(call, row, refused, count):
    """-1: there is none."""
    scores, maxima = call.scores, call.maxima
    best, winner = _LOWEST, -1
    for block in range(call.blocks):
        if not v.load_f32(maxima, block) * row.inverse > best:
            continue
        for token in range(block * BLOCK, block * BLOCK + BLOCK):
            z = v.load_f32(scores, token) * row.inverse
            if z > best and not _is_among(token, refused, count):
                best, winner = z, token
    return winner


@inner
def first_of(call, row_top, inverse):
    """The lowest id with this z."""
    scores, maxima, top = call.scores, call.maxima, v.spread(row_top)
    for block in range(call.blocks):
        if v.load_f32(maxima, block) * inverse == row_top:
            for i in range(block * BLOCK, block * BLOCK + BLOCK, LANES):
                bits = lanes.equal(v.load_floats(scores, i) * v.spread(inverse), top)
                if bits:
                    return i + lanes.lowest(bits)
    return -1


# From what a distribution leaves of the row -----------------------------------------------------------------


@inlined
def _rest(call, probs, i, left, per_mass, weight):
    """weight * target_probs - draft_probs of 16 ids, of which `left` are in the vocabulary."""
    target = lanes.whole_units(v.load_floats(call.fractions, i)) * per_mass
    return target * weight - v.load_floats_part(probs, i, left)


@inner
def sampled_rest(call, row, probs, weight):
    """From max(weight * target_probs - draft_probs, 0), of a weighed row; -1 where nothing is left of that."""
    maxima, vocabulary, lowest, lost = call.maxima, call.vocabulary, lowest_edge(row), v.spread(_LOST)
    per_mass, weights = v.spread(np.float32(1.0) / np.float32(row.total)), v.spread(weight)
    best, winner, reach = -np.inf, -1, np.float32(np.inf)
    for block in range(call.blocks):
        # Without a mass nothing is left.
        if v.load_f32(maxima, block) * row.inverse < lowest:
            continue
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, vocabulary), LANES):
            rest = _rest(call, probs, i, min(vocabulary - i, LANES), per_mass, weights)
            hashed = lanes.hashes(lanes.ids_from(i), row.k0, row.k1, row.k2)
            bits = lanes.above(rest, lost) & lanes.at_least(rest * v.spread(reach), lanes.chances(hashed))
            if bits:
                noisy = lanes.lns(rest) + lanes.gumbels(hashed)
                while bits:
                    at = lanes.lowest(bits)
                    bits &= bits - 1
                    score = np.float64(v.lane(noisy, at))
                    if score > best:
                        best, winner = score, i + at
                        # w <= rest / exp(best), as above.
                        reach = np.float32(np.exp(_margin(best) - best) * 2.0**31)
    return winner


@inner
def rest_total(call, row, probs, weight):
    """The sum of that, in whole units."""
    maxima, vocabulary, lowest, none = call.maxima, call.vocabulary, lowest_edge(row), v.zeros()
    per_mass, weights = v.spread(np.float32(1.0) / np.float32(row.total)), v.spread(weight)
    total, high, low, sums = 0, v.int_zeros(), v.int_zeros(), 0
    for block in range(call.blocks):
        if v.load_f32(maxima, block) * row.inverse < lowest:
            continue
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, vocabulary), LANES):
            rest = _rest(call, probs, i, min(vocabulary - i, LANES), per_mass, weights)
            rest = v.maximum(rest, none)
            part = lanes.upper(rest)
            high, low = high + part, low + lanes.lower(rest, part)
        total, high, low, sums = before_overflow(total, high, low, sums + BLOCK // LANES)
    return total + whole_sum(high, low)


@inner
def spread_of(call, row):
    """The sum over ids of fraction * below, in whole units: what the entropy is made of."""
    scores, maxima, lowest = call.scores, call.maxima, lowest_edge(row)
    inverse, top, none, unit = v.spread(row.inverse), v.spread(row.top), v.zeros(), v.spread(_LOST)
    total, high, low, sums = 0, v.int_zeros(), v.int_zeros(), 0
    for block in range(call.blocks):
        if v.load_f32(maxima, block) * row.inverse < lowest:
            continue
        for i in range(block * BLOCK, block * BLOCK + BLOCK, LANES):
            fraction = lanes.whole_units(v.load_floats(call.fractions, i)) * unit
            # What has no mass may lie infinitely far below.
            bits = lanes.above(fraction, none)
            below = lanes.choose(bits, v.load_floats(scores, i) * inverse - top, none)
            part = lanes.upper(fraction * below)
            high, low = high + part, low + lanes.lower(fraction * below, part)
        total, high, low, sums = before_overflow(total, high, low, sums + BLOCK // LANES)
    return total + whole_sum(high, low)
