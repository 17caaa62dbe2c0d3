"""What single rows say: which sequence they belong to, their edited scores, the highest, what is allowed, sums.

Any split of a row among programs gives the same integers: what is compared is compared by (value, id), what is
summed is whole numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.verify import questions
from kernels.verify.fused_numbers import (
    BAR_ID,
    BAR_KEY,
    DEPTH,
    ENTRY_COUNT,
    FIRST,
    ID_BITS,
    MINUS_INFINITY,
    NONE_YET,
    ONE_UNIT,
    ROW,
    SEQUENCE,
    TOP,
    as_bits,
    as_float,
    as_mass,
    blocks_of,
    chances,
    gumbel,
    inverse_of,
    key_of,
    lowest_of_best,
    mass,
    may_reach,
    random_words,
    read,
    score_of,
)

WORDS = tl.constexpr(questions.WORDS)
STRATEGY = tl.constexpr(questions.STRATEGY)
ACCEPT = tl.constexpr(questions.ACCEPT)
TOP_K = tl.constexpr(questions.TOP_K)
TOP_P = tl.constexpr(questions.TOP_P)
FLOOR = tl.constexpr(questions.FLOOR)
REPETITION = tl.constexpr(questions.REPETITION)
PRESENCE = tl.constexpr(questions.PRESENCE)
FREQUENCY = tl.constexpr(questions.FREQUENCY)
MATCH = tl.constexpr(questions.MATCH)
TYPICAL = tl.constexpr(questions.TYPICAL)
TOPP = tl.constexpr(questions.TOPP)
NORMAL = tl.constexpr(questions.NORMAL)

# What a program keeps of its part of a row, in words of 32 bits.
BEST = tl.constexpr(0)  # f32, the highest z
BEST_ID = tl.constexpr(1)
OWN = tl.constexpr(2)  # f32, the highest z + noise
OWN_ID = tl.constexpr(3)
RANK = tl.constexpr(4)  # of the token that this row stands behind, in its parent's row
PART = tl.constexpr(5)
# Programs of a row, at most: the lanes that put their parts together.
MOST_SPLITS = tl.constexpr(64)
LANES = tl.constexpr(128)  # rows of a sequence, at most
PIVOTS = tl.constexpr(8)
LAST_ID = tl.constexpr(2**20 - 1)
# Just under the place of all that can be: -inf has this key.
LOWEST = tl.constexpr((-2139095041 + 1) * 2**20 - 1)


@triton.jit(do_not_specialize=["sequences", "rows"])
def prepare_kernel(begins, parents, table, sequences, rows):
    """Program b: sequence and depth of the rows of sequence b; the last one: rows that are nobody's."""
    b = tl.program_id(0)
    lanes = tl.arange(0, LANES)
    begin = tl.load(begins + b)
    if b == sequences:
        for at in range(begin, rows, LANES):
            tl.store(table + (at + lanes).to(tl.int64) * ROW + SEQUENCE, -1, mask=at + lanes < rows)
    else:
        here = lanes < tl.load(begins + b + 1) - begin
        above = tl.load(parents + begin + lanes, mask=here, other=-1)
        chain = tl.min(tl.where(here & (lanes > 0), (above == begin + lanes - 1).to(tl.int32), 1), axis=0)
        depth = tl.where(lanes >= 0, 0, 0)
        if chain == 1:
            depth = lanes
        else:
            while tl.max(above, axis=0) >= 0:
                depth += (above >= 0).to(tl.int32)
                above = tl.load(parents + above, mask=above >= 0, other=-1)
        row = table + (begin + lanes).to(tl.int64) * ROW
        tl.store(row + SEQUENCE, b, mask=here)
        tl.store(row + DEPTH, depth, mask=here)


@triton.jit
def keep(best, at, values, ids):
    """Lane by lane the better of two; equal ones by id."""
    better = (values > best) | ((values == best) & (ids < at))
    return tl.where(better, values, best), tl.where(better, ids, at)


@triton.jit(do_not_specialize=["splits"])
def scan_kernel(
    logits, rules, table, entry_ids, entry_values, bits, mask_rows, parts, splits,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr, SAMPLED: tl.constexpr,
):  # fmt: skip
    """Program (row, split): the highest z, and what is chosen where everything is allowed and nothing is judged."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    table += row * ROW
    b = tl.load(table + SEQUENCE)
    if b >= 0:
        rule = rules + b * WORDS
        inverse, greedy = inverse_of(rule)
        bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        at = tl.full([BLOCK], NONE_YET, tl.int32)
        broken = tl.full([BLOCK], 0, tl.int32)
        own = best
        own_at = at
        reach = tl.full([], float("-inf"), tl.float32)
        noisy = SAMPLED and (chooses(rule, greedy) & (filtered(rule) == 0))
        k0, k1, k2 = tl.cast(0, tl.uint32), tl.cast(0, tl.uint32), tl.cast(0, tl.uint32)
        if noisy:
            k0, k1, k2 = random_words(rule, tl.load(table + DEPTH), split * 0)
        # Several blocks are on their way at a time.
        for block in tl.range(split, blocks_of(table, V, BLOCK, HAS_EDITS), splits, num_stages=4):
            scores, ids = read(
                logits + row * STRIDE, table, entry_ids, entry_values, bits, bits_row, block,
                V, BLOCK, HAS_EDITS, HAS_MASKS,
            )  # fmt: skip
            z = scores * inverse
            broken |= (z != z).to(tl.int32)
            best, at = keep(best, at, z, ids)
            if noisy:
                w = chances(ids, k0, k1, k2)
                if tl.max(may_reach(z, w, reach).to(tl.int32), axis=0) > 0:
                    own, own_at = keep(own, own_at, z + gumbel(w), ids)
                    reach = tl.max(own, axis=0)
        top, first = lowest_of_best(best, at)
        # Not a number counts as the highest.
        top = tl.where(tl.max(broken, axis=0) > 0, float("inf"), top)
        part = parts + (row * splits + split) * PART
        tl.store(part + BEST, as_bits(top))
        tl.store(part + BEST_ID, first)
        if noisy:
            top, first = lowest_of_best(own, own_at)
            tl.store(part + OWN, as_bits(top))
            tl.store(part + OWN_ID, first)


@triton.jit
def chooses(rule, greedy):
    """Whether each row's own token is asked for, with noise."""
    return (greedy == 0) & (tl.load(rule + STRATEGY) == MATCH) & (tl.load(rule + ACCEPT) == NORMAL)


@triton.jit
def filtered(rule):
    top_p = as_float(tl.load(rule + TOP_P))
    return (tl.load(rule + TOP_K) > 0) | (top_p < 1.0) | (as_float(tl.load(rule + FLOOR)) > float("-inf"))


@triton.jit
def merged(parts, row, splits, WHICH: tl.constexpr):
    """The best of a row's parts, and its id."""
    lanes = tl.arange(0, MOST_SPLITS)
    part = parts + (row.to(tl.int64) * splits + lanes) * PART + WHICH
    values = as_float(tl.load(part, mask=lanes < splits, other=MINUS_INFINITY))
    return lowest_of_best(values, tl.load(part + 1, mask=lanes < splits, other=NONE_YET))


# What is allowed -------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["splits"])
def settle_kernel(
    logits, rules, table, entry_ids, entry_values, bits, mask_rows, parts, splits,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Program row: the highest of all parts; and the last id inside of top_k, then of top_p of what that left."""
    row = tl.program_id(0).to(tl.int64)
    table += row * ROW
    b = tl.load(table + SEQUENCE)
    if b >= 0:
        rule = rules + b * WORDS
        inverse, greedy = inverse_of(rule)
        top, first = merged(parts, row, splits, BEST)
        finite = (top > float("-inf")) & (top < float("inf"))
        if HAS_EDITS:
            finite = finite & (tl.load(table + ENTRY_COUNT) >= 0)
        bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
        top_k = tl.load(rule + TOP_K)
        top_p = as_float(tl.load(rule + TOP_P))
        high = place_of(top, first)
        low = high * 0 + LOWEST
        if finite & (greedy == 0):
            if (top_k > 0) & (top_k < V):
                low = search(
                    logits + row * STRIDE, table, entry_ids, entry_values, bits, bits_row, low, high, top, inverse,
                    top_k, top_p, V, BLOCK, HAS_EDITS, HAS_MASKS, False,
                )  # fmt: skip
            if top_p < 1.0:
                low = search(
                    logits + row * STRIDE, table, entry_ids, entry_values, bits, bits_row, low, high, top, inverse,
                    top_k, top_p, V, BLOCK, HAS_EDITS, HAS_MASKS, True,
                )  # fmt: skip
            if as_float(tl.load(rule + FLOOR)) > 0.0:
                low = high - 1
        bar = low + 1
        tl.store(table + TOP, as_bits(top))
        tl.store(table + FIRST, tl.where(finite, first, -1))
        tl.store(table + BAR_KEY, (bar >> ID_BITS).to(tl.int32))
        tl.store(table + BAR_ID, ((bar & LAST_ID) ^ LAST_ID).to(tl.int32))


@triton.jit
def place_of(z, ids):
    """A number for every (score, id) that is higher the earlier it comes: by score falling, then by id rising."""
    return (key_of(z).to(tl.int64) << ID_BITS) + (ids ^ LAST_ID)


@triton.jit
def search(
    logits, table, entry_ids, entry_values, bits, bits_row, low, high, top, inverse, top_k, top_p,
    V: tl.constexpr, BLOCK: tl.constexpr, HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr, BY_MASS: tl.constexpr,
):  # fmt: skip
    """Of the ids with places in (low, high], a beginning is wanted: while under `top_k` ids come before one, or
    (BY_MASS) while what comes before has less than `top_p` of the mass of all. What is returned lies right under it.

    `low` and `high` close in: the ids above `high` are inside and so is the first at or below it; those at or below
    `low` are outside. Each read of the row counts and weighs what lies above PIVOTS places between them, until one
    id is left there. Blocks with nothing between them cost their read alone.
    """
    slots = tl.arange(0, PIVOTS)
    first = high
    # First by distance from the top, as masses are; then evenly, between the highest and lowest that are left.
    distance = tl.where(slots < 4, 0.5 + 0.75 * slots, (slots - 2.0) * (slots - 2.0))
    pivots = tl.where(slots == PIVOTS - 1, low, place_of(top - distance, slots * 0))
    pivots = tl.maximum(tl.minimum(pivots, high - 1), low)
    reach = tl.full([], -1.0, tl.float64)
    count_low = tl.full([], 2147483647, tl.int32)
    count_high = tl.full([], 0, tl.int32)
    mass_high = tl.full([], 0, tl.int64)
    going = tl.full([], 1, tl.int32)
    while going == 1:
        counts = tl.zeros([PIVOTS, BLOCK], tl.int32)
        masses = tl.zeros([PIVOTS, BLOCK], tl.int64)
        least = tl.full([BLOCK], 0, tl.int64) + high
        most = tl.full([BLOCK], 0, tl.int64) + low
        for block in range(0, blocks_of(table, V, BLOCK, HAS_EDITS)):
            scores, ids = read(
                logits, table, entry_ids, entry_values, bits, bits_row, block, V, BLOCK, HAS_EDITS, HAS_MASKS
            )
            z = scores * inverse
            place = place_of(z, ids)
            between = (place > low) & (place <= high)
            if tl.max(between.to(tl.int32), axis=0) > 0:
                least = tl.where(between & (place < least), place, least)
                most = tl.where(between & (place > most), place, most)
                above = between[None, :] & (place[None, :] > pivots[:, None])
                counts += above.to(tl.int32)
                if BY_MASS:
                    masses += tl.where(above, mass(z - top)[None, :], 0)
        counted = tl.sum(counts, axis=1) + count_high
        weighed = tl.sum(masses, axis=1) + mass_high
        if reach < 0.0:
            # The first time the last pivot is `low`: above it lie all.
            count_low = tl.sum(tl.where(slots == PIVOTS - 1, counted, 0), axis=0)
            reach = top_p.to(tl.float64) * tl.sum(tl.where(slots == PIVOTS - 1, weighed, 0), axis=0).to(tl.float64)
        if BY_MASS:
            inside = weighed.to(tl.float64) < reach
        else:
            inside = counted < top_k
        # Nothing between a bound and the id next to it: they move there.
        most_of_all = tl.max(most, axis=0)
        least_of_all = tl.min(least, axis=0)
        high = tl.minimum(tl.min(tl.where(inside, pivots, high), axis=0), most_of_all)
        low = tl.maximum(tl.max(tl.where(inside, low, pivots), axis=0), least_of_all - 1)
        count_high = tl.max(tl.where(inside, counted, count_high), axis=0)
        mass_high = tl.max(tl.where(inside, weighed, mass_high), axis=0)
        count_low = tl.min(tl.where(inside, count_low, counted), axis=0)
        if count_low - count_high <= 1:
            going = tl.full([], 0, tl.int32)
        if BY_MASS and reach <= 0.0:
            # The likeliest is inside even so.
            low = first - 1
            going = tl.full([], 0, tl.int32)
        step = tl.maximum((high - low) // (PIVOTS + 1), 1)
        pivots = tl.minimum(low + step * (slots + 1), high - 1)
    return low


@triton.jit
def allowed(z, ids, table, rule, top):
    """Whether ids are inside of top_k, top_p and min_p. `table` points to the row, which is settled."""
    key = key_of(z)
    bar = tl.load(table + BAR_KEY)
    inside = (key > bar) | ((key == bar) & (ids <= tl.load(table + BAR_ID)))
    floor = tl.minimum(as_float(tl.load(rule + FLOOR)), 0.0)
    return inside & (z - top >= floor)


@triton.jit(do_not_specialize=["splits"])
def measure_kernel(
    logits, rules, begins, drafted, parents, table, entry_ids, entry_values, bits, mask_rows, parts, sums, splits,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Program (row, split): of what is allowed the one chosen; or its mass (and, for TYPICAL, that times `below`);
    or how many are likelier than what was drafted for here."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    own_table = table + row * ROW
    b = tl.load(own_table + SEQUENCE)
    if b >= 0:
        rule = rules + b * WORDS
        inverse, greedy = inverse_of(rule)
        strategy = tl.load(rule + STRATEGY)
        normal = (greedy == 0) & (tl.load(rule + ACCEPT) == NORMAL) & (tl.load(own_table + FIRST) >= 0)
        bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
        top = as_float(tl.load(own_table + TOP))
        blocks = blocks_of(own_table, V, BLOCK, HAS_EDITS)
        if normal & (strategy == MATCH) & filtered(rule):
            k0, k1, k2 = random_words(rule, tl.load(own_table + DEPTH), split * 0)
            own = tl.full([BLOCK], float("-inf"), tl.float32)
            own_at = tl.full([BLOCK], NONE_YET, tl.int32)
            reach = tl.full([], float("-inf"), tl.float32)
            for block in tl.range(split, blocks, splits, num_stages=3):
                scores, ids = read(
                    logits + row * STRIDE, own_table, entry_ids, entry_values, bits, bits_row, block,
                    V, BLOCK, HAS_EDITS, HAS_MASKS,
                )  # fmt: skip
                z = scores * inverse
                within = allowed(z, ids, own_table, rule, top)
                w = chances(ids, k0, k1, k2)
                if tl.max((within & may_reach(z, w, reach)).to(tl.int32), axis=0) > 0:
                    own, own_at = keep(own, own_at, tl.where(within, z + gumbel(w), float("-inf")), ids)
                    reach = tl.max(own, axis=0)
            best, at = lowest_of_best(own, own_at)
            part = parts + (row * splits + split) * PART
            tl.store(part + OWN, as_bits(best))
            tl.store(part + OWN_ID, at)
        if normal & (strategy != MATCH) & (strategy != TOPP):
            total = tl.zeros([BLOCK], tl.int64)
            mean = tl.zeros([BLOCK], tl.int64)
            for block in tl.range(split, blocks, splits, num_stages=3):
                scores, ids = read(
                    logits + row * STRIDE, own_table, entry_ids, entry_values, bits, bits_row, block,
                    V, BLOCK, HAS_EDITS, HAS_MASKS,
                )  # fmt: skip
                z = scores * inverse
                below = z - top
                masses = tl.where(allowed(z, ids, own_table, rule, top), mass(below), 0)
                total += masses
                if strategy == TYPICAL:
                    fraction = masses.to(tl.float32) * ONE_UNIT
                    mean += as_mass(fraction * tl.where(masses > 0, below, 0.0))
            tl.store(sums + (row * splits + split) * 2, tl.sum(total, axis=0))
            tl.store(sums + (row * splits + split) * 2 + 1, tl.sum(mean, axis=0))
        if normal & (strategy == TOPP):
            for child in range(row.to(tl.int32) + 1, tl.load(begins + b + 1)):
                token = tl.load(drafted + child)
                if (tl.load(parents + child) == row) & (token >= 0) & (token < V):
                    score = score_of(
                        logits + row * STRIDE, own_table, entry_ids, entry_values, bits, bits_row, token,
                        V, HAS_EDITS, HAS_MASKS,
                    )  # fmt: skip
                    here = score * inverse
                    likelier = tl.zeros([BLOCK], tl.int32)
                    for block in tl.range(split, blocks, splits, num_stages=3):
                        scores, ids = read(
                            logits + row * STRIDE, own_table, entry_ids, entry_values, bits, bits_row, block,
                            V, BLOCK, HAS_EDITS, HAS_MASKS,
                        )  # fmt: skip
                        z = scores * inverse
                        likelier += ((z > here) | ((z == here) & (ids < token))).to(tl.int32)
                    tl.store(parts + ((row * 0 + child) * splits + split) * PART + RANK, tl.sum(likelier, axis=0))
