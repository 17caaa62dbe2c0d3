"""What single rows say: which sequence they belong to, their edited scores, the highest, what is allowed, sums.

Any split of a row among programs gives the same integers: what is compared is compared by (value, id), what is
summed is whole numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent import wait_for_kernel_before
from kernels.verify import questions
from kernels.verify.fused_numbers import (
    BAR_ID,
    BAR_KEY,
    CUT,
    DEPTH,
    ENTRY_COUNT,
    FIRST,
    FOUND,
    FOUND_LATER,
    ID_BITS,
    LOWEST_KEY,
    MEASURED,
    MINUS_INFINITY,
    NONE_YET,
    ONE_UNIT,
    REACHED,
    ROW,
    SEQUENCE,
    TOP,
    as_bits,
    as_float,
    as_mass,
    best_with_noise,
    blocks_of,
    chances,
    gumbel,
    inverse_of,
    keep,
    key_of,
    lowest_of_best,
    mass,
    random_words,
    read,
    score_of,
    some,
    z_of,
)

WORDS = tl.constexpr(questions.WORDS)
STRATEGY = tl.constexpr(questions.word_of("strategy"))
ACCEPT = tl.constexpr(questions.word_of("accept"))
TOP_K = tl.constexpr(questions.word_of("top_k"))
TOP_P = tl.constexpr(questions.word_of("top_p"))
FLOOR = tl.constexpr(questions.word_of("floor"))
REPETITION = tl.constexpr(questions.word_of("repetition"))
PRESENCE = tl.constexpr(questions.word_of("presence"))
FREQUENCY = tl.constexpr(questions.word_of("frequency"))
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
LAST_ID = tl.constexpr(2**20 - 1)
# Just under the place of all that can be: -inf has this key.
LOWEST = tl.constexpr((-2139095041 + 1) * 2**20 - 1)
HIGHEST = tl.constexpr(2**62)  # above all places

# The search for the last id inside of top_k or top_p.
PEAKS = tl.constexpr(2048)  # groups of a row's ids whose highest z is kept, at most
CAPACITY = tl.constexpr(2048)  # ids that are collected for a row, at most
SHORT = tl.constexpr(128)  # ids of a list that is put in order at once, at most
PIVOTS = tl.constexpr(8)  # places that a step of the search counts and weighs what is above of
# What a program says of its part of a row in a step, in words of 64 bits: PIVOTS counts, PIVOTS masses, then
LEAST = tl.constexpr(16)  # the lowest place between the bounds
MOST = tl.constexpr(17)  # the highest
TALLY = tl.constexpr(18)


@triton.jit(do_not_specialize=["sequences", "rows"])
def prepare_kernel(begins, parents, table, sequences, rows):
    """Program b: sequence and depth of the rows of sequence b; the last one: rows that are nobody's."""
    wait_for_kernel_before()
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
        tl.store(row + FOUND, 0, mask=here)
        tl.store(row + FOUND_LATER, 0, mask=here)
        tl.store(row + REACHED, LOWEST_KEY, mask=here)


@triton.jit
def coarse(z):
    """The upper half of a key: as fine as bfloat16."""
    return (key_of(z) >> 16).to(tl.int16)


@triton.jit(do_not_specialize=["splits"])
def scan_kernel(
    logits, rules, table, entry_ids, entry_values, bits, mask_rows, parts, peaks, splits,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr, SAMPLED: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """Program (row, split): the highest z, and what is chosen where everything is allowed and nothing is judged.
    Where top_k or top_p will be searched for, also the highest z of every GROUP ids of the vocabulary."""
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    table += row * ROW
    b = tl.load(table + SEQUENCE)
    if b >= 0:
        rule = rules + b * WORDS
        inverse, greedy = inverse_of(rule)
        bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
        source = logits + row * STRIDE, entry_ids, entry_values, bits, bits_row
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        at = tl.full([BLOCK], NONE_YET, tl.int32)
        own = tl.full([], float("-inf"), tl.float32)
        own_at = tl.full([], NONE_YET, tl.int32)
        noisy = SAMPLED and (chooses(rule, greedy) & (filtered(rule) == 0))
        grouped = SAMPLED and searched(rule, greedy, V)
        groups = tl.arange(0, BLOCK // GROUP)
        k0, k1, k2 = tl.cast(0, tl.uint32), tl.cast(0, tl.uint32), tl.cast(0, tl.uint32)
        if noisy:
            k0, k1, k2 = random_words(rule, tl.load(table + DEPTH), split * 0)
        # Several blocks are on their way at a time.
        for block in tl.range(split, blocks_of(table, V, BLOCK, HAS_EDITS), splits, num_stages=4):
            reached = own
            if noisy:
                # The best that any program of the row has seen by now. It is a score of this row whenever it's read:
                # it saves noise that can't win, and changes nothing else.
                reached = tl.maximum(own, z_of(tl.load(table + REACHED, volatile=True)))
            scores, ids = read(source, table, block, V, BLOCK, HAS_EDITS, HAS_MASKS)
            z = scores * inverse
            if noisy:
                was = own
                own, own_at = best_with_noise(z, ids, k0, k1, k2, own, own_at, reached, TOGETHER)
                if own > was:
                    tl.atomic_max(table + REACHED, key_of(own), sem="relaxed")
            else:
                # Where noise decides, only the height matters, to see whether it's finite.
                if HAS_EDITS:
                    _higher, at = keep(best, at, z, ids)
                else:
                    # Ids rise from block to block.
                    at = tl.where(z > best, ids, at)
                if grouped:
                    highest = tl.max(tl.reshape(z, [BLOCK // GROUP, GROUP]), axis=1)
                    group = block * (BLOCK // GROUP) + groups
                    tl.store(peaks + row * PEAKS + group, coarse(highest), mask=group < tl.cdiv(V, GROUP))
            best = tl.maximum(best, z, propagate_nan=tl.PropagateNan.ALL)
        top, first = lowest_of_best(best, at)
        # Not a number counts as the highest.
        top = tl.where(tl.max((best != best).to(tl.int32), axis=0) > 0, float("inf"), top)
        part = parts + (row * splits + split) * PART
        tl.store(part + BEST, as_bits(top))
        tl.store(part + BEST_ID, first)
        if noisy:
            tl.store(part + OWN, as_bits(own))
            tl.store(part + OWN_ID, own_at)


@triton.jit
def chooses(rule, greedy):
    """Whether each row's own token is asked for, with noise."""
    return (greedy == 0) & (tl.load(rule + STRATEGY) == MATCH) & (tl.load(rule + ACCEPT) == NORMAL)


@triton.jit
def filtered(rule):
    top_p = as_float(tl.load(rule + TOP_P))
    return (tl.load(rule + TOP_K) > 0) | (top_p < 1.0) | (as_float(tl.load(rule + FLOOR)) > float("-inf"))


@triton.jit
def only_first(rule):
    """Whether a filter leaves the likeliest id alone, whatever the others' scores."""
    only = (tl.load(rule + TOP_K) == 1) | (as_float(tl.load(rule + TOP_P)) <= 0.0)
    return only | (as_float(tl.load(rule + FLOOR)) > 0.0)


@triton.jit
def limited(top_k, V: tl.constexpr):
    return (top_k > 0) & (top_k < V)


@triton.jit
def searched(rule, greedy, V: tl.constexpr):
    """Whether the last id inside of top_k or top_p must be searched for."""
    filters = limited(tl.load(rule + TOP_K), V) | (as_float(tl.load(rule + TOP_P)) < 1.0)
    return filters & (greedy == 0) & (only_first(rule) == 0)


@triton.jit
def merged(parts, row, splits, WHICH: tl.constexpr):
    """The best of a row's parts, and its id."""
    lanes = tl.arange(0, MOST_SPLITS)
    part = parts + (row.to(tl.int64) * splits + lanes) * PART + WHICH
    values = as_float(tl.load(part, mask=lanes < splits, other=MINUS_INFINITY))
    return lowest_of_best(values, tl.load(part + 1, mask=lanes < splits, other=NONE_YET))


@triton.jit
def whole_of(sums, row, splits, WHICH: tl.constexpr):
    lanes = tl.arange(0, MOST_SPLITS)
    part = sums + (row.to(tl.int64) * splits + lanes) * 2 + WHICH
    return tl.sum(tl.load(part, mask=lanes < splits, other=0), axis=0)


# What is allowed -------------------------------------------------------------------------------------------


@triton.jit
def place_of(z, ids):
    """A number for every (score, id) that is higher the earlier it comes: by score falling, then by id rising."""
    return (key_of(z).to(tl.int64) << ID_BITS) + (ids ^ LAST_ID)


@triton.jit
def score_at(place):
    return z_of((place >> ID_BITS).to(tl.int32))


@triton.jit
def id_at(place):
    return ((place & LAST_ID) ^ LAST_ID).to(tl.int32)


@triton.jit
def under(key):
    """Just under the places of all ids with this key, and of these only what can be."""
    return tl.maximum((key.to(tl.int64) << ID_BITS) - 1, LOWEST)


@triton.jit
def trusted(top, table, HAS_EDITS: tl.constexpr):
    finite = (top > float("-inf")) & (top < float("inf"))
    if HAS_EDITS:
        finite = finite & (tl.load(table + ENTRY_COUNT) >= 0)
    return finite


@triton.jit
def cut_of(peaks, top_k, V: tl.constexpr, GROUP: tl.constexpr):
    """The key to collect ids down to. The k highest peaks are k ids, so the k-th likeliest id is no lower than the k-th
    peak; and not many ids are. Where k isn't known, or large, it's a quarter of the peaks."""
    lanes = tl.arange(0, PEAKS)
    groups = tl.cdiv(V, GROUP)
    keys = tl.load(peaks + lanes, mask=lanes < groups, other=-32768).to(tl.int32)
    wanted = tl.where((top_k > 0) & (top_k <= groups // 2), top_k, groups // 4)
    cut = tl.full([], -32768, tl.int32)
    for bit in tl.static_range(16):
        higher = cut + (32768 >> bit)
        cut = tl.where(tl.sum((keys >= higher).to(tl.int32), axis=0) >= wanted, higher, cut)
    return cut << 16


@triton.jit(do_not_specialize=["splits"])
def collect_kernel(
    logits, rules, table, entry_ids, entry_values, bits, mask_rows, parts, peaks, places, sums, splits,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Program (row, split), the first step of a search: the likeliest ids are collected; for top_p alone they are
    weighed, and so is the whole row."""
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    table += row * ROW
    b = tl.load(table + SEQUENCE)
    if b >= 0:
        rule = rules + b * WORDS
        inverse, greedy = inverse_of(rule)
        top, first = merged(parts, row, splits, BEST)
        if searched(rule, greedy, V) & trusted(top, table, HAS_EDITS):
            top_k = tl.load(rule + TOP_K)
            cut = cut_of(peaks + row * PEAKS, top_k, V, GROUP)
            bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
            source = logits + row * STRIDE, entry_ids, entry_values, bits, bits_row
            above, whole = collect(
                source, table, places + row * CAPACITY, table + FOUND, split, splits,
                under(cut), place_of(top, first), top, inverse, limited(top_k, V) == 0,
                V, BLOCK, HAS_EDITS, HAS_MASKS,
            )  # fmt: skip
            tl.store(sums + (row * splits + split) * 2, above)
            tl.store(sums + (row * splits + split) * 2 + 1, whole)
            tl.store(table + CUT, cut, mask=split == 0)


@triton.jit
def collect(
    source, table, places, found, split, splits, low, high, top, inverse, weighs,
    V: tl.constexpr, BLOCK: tl.constexpr, HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Write down the places in (low, high] of a program's part of the row, in any order, as many as there is room for,
    and count them all in `found`. Their mass and that of the whole part, if it `weighs`."""
    above = tl.full([], 0, tl.int64)
    whole = tl.zeros([BLOCK], tl.int64)
    least = score_at(low + 1)
    for block in tl.range(split, blocks_of(table, V, BLOCK, HAS_EDITS), splits, num_stages=3):
        scores, ids = read(source, table, block, V, BLOCK, HAS_EDITS, HAS_MASKS)
        z = scores * inverse
        if weighs:
            whole += mass(z - top)
        if tl.max(z, axis=0) >= least:
            place = place_of(z, ids)
            inside = (place > low) & (place <= high)
            at = tl.atomic_add(found + ids * 0, 1, mask=inside, sem="relaxed")
            tl.store(places + at, place, mask=inside & (at < CAPACITY))
            if weighs:
                above += tl.sum(tl.where(inside, mass(z - top), 0), axis=0)
    return above, tl.sum(whole, axis=0)


@triton.jit
def tally_of(tallies, step, split, splits):
    """What the program (row, split) saw in a step."""
    row = step.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    return tallies + (row * splits + split) * TALLY


@triton.jit(do_not_specialize=["splits", "steps"])
def narrow_kernel(
    logits, rules, table, entry_ids, entry_values, bits, mask_rows, parts, places, sums, tallies, splits, steps,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Program (row, split), one more step of a search that doesn't end among the ids collected first: once few are
    left, these are collected."""
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    table += row * ROW
    b = tl.load(table + SEQUENCE)
    # The first of these launches writes it, and so must not look: some threads of a program might see it already.
    needed = (steps == 1) | (tl.load(table + FOUND_LATER) >= 0)
    if (b >= 0) & needed:
        rule = rules + b * WORDS
        inverse, greedy = inverse_of(rule)
        top, first = merged(parts, row, splits, BEST)
        if searched(rule, greedy, V) & trusted(top, table, HAS_EDITS):
            top_k = tl.load(rule + TOP_K)
            top_p = as_float(tl.load(rule + TOP_P))
            by_mass = limited(top_k, V) == 0
            high = place_of(top, first)
            low, high, _, _, _, _, step, few, found = follow(
                table, sums, tallies, splits, steps, high * 0 + LOWEST, high, top_k, top_p, by_mass
            )
            bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
            source = logits + row * STRIDE, entry_ids, entry_values, bits, bits_row
            if found > 0:
                tl.store(table + FOUND_LATER, -1)
            elif step == steps:
                if few:
                    collect(
                        source, table, places + row * CAPACITY, table + FOUND_LATER, split, splits, low, high, top,
                        inverse, False, V, BLOCK, HAS_EDITS, HAS_MASKS,
                    )  # fmt: skip
                else:
                    counted, weighed, least, most = weigh(
                        source, table, places, found, split, splits, low, high, pivots_of(step, low, high), top,
                        inverse, by_mass, V, BLOCK, HAS_EDITS, HAS_MASKS,
                    )  # fmt: skip
                    slots = tl.arange(0, PIVOTS)
                    tally = tally_of(tallies, step - 1, split, splits)
                    tl.store(tally + slots, counted)
                    tl.store(tally + PIVOTS + slots, weighed)
                    tl.store(tally + LEAST, least)
                    tl.store(tally + MOST, most)


@triton.jit(do_not_specialize=["splits", "steps"])
def settle_kernel(
    logits, rules, table, entry_ids, entry_values, bits, mask_rows, parts, places, sums, tallies, splits, steps,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Program row: the highest of all parts; and the last id inside of top_k, then of top_p of what that left, when
    all programs of the row have taken this many `steps` of the search."""
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    table += row * ROW
    b = tl.load(table + SEQUENCE)
    if b >= 0:
        rule = rules + b * WORDS
        inverse, greedy = inverse_of(rule)
        top, first = merged(parts, row, splits, BEST)
        finite = trusted(top, table, HAS_EDITS)
        high = place_of(top, first)
        low = high * 0 + LOWEST
        measured = b * 0
        if only_first(rule):
            low = high - 1
        if finite & searched(rule, greedy, V):
            bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
            source = logits + row * STRIDE, entry_ids, entry_values, bits, bits_row
            top_k = tl.load(rule + TOP_K)
            top_p = as_float(tl.load(rule + TOP_P))
            by_mass = limited(top_k, V) == 0
            own_places = places + row * CAPACITY
            listed = tl.where(steps > 0, tl.load(table + FOUND), 0)
            reach = top_p.to(tl.float64) * whole_of(sums, row, splits, 1).to(tl.float64)
            ends = tl.where(by_mass, whole_of(sums, row, splits, 0).to(tl.float64) >= reach, listed >= top_k)
            # Or there are no others that can be.
            ends = ends | (under(tl.load(table + CUT)) == LOWEST)
            if (listed > 0) & (listed <= SHORT) & ends:
                lanes = tl.arange(0, SHORT)
                place = tl.load(own_places + lanes, mask=lanes < listed, other=LOWEST)
                low = last_inside(place, own_places, listed, top, top_k, top_p, by_mass, reach) - 1
                measure_list(tl.where(place > low, place, LOWEST), table, rule, parts, sums, row, splits, top, greedy)
                measured = b * 0 + 1
            else:
                low, found = search(
                    source, table, own_places, sums, tallies, splits, steps, b * 0, low, high, top, inverse,
                    top_k, top_p, by_mass, V, BLOCK, HAS_EDITS, HAS_MASKS,
                )  # fmt: skip
                if (by_mass == 0) & (top_p < 1.0):
                    low, found = search(
                        source, table, own_places, sums, tallies, splits, steps * 0, found, low, high, top,
                        inverse, top_k, top_p, by_mass == 0, V, BLOCK, HAS_EDITS, HAS_MASKS,
                    )  # fmt: skip
        bar = low + 1
        tl.store(table + TOP, as_bits(top))
        tl.store(table + FIRST, tl.where(finite, first, -1))
        tl.store(table + BAR_KEY, (bar >> ID_BITS).to(tl.int32))
        tl.store(table + BAR_ID, id_at(bar))
        tl.store(table + MEASURED, measured)


@triton.jit
def last_inside(place, places, found, top, top_k, top_p, by_mass, reach):
    """Of a short list, whose beginning is in `place` and that holds the last id inside: the place of that one. How many
    come before each, and their mass, is counted for all at once."""
    lanes = tl.arange(0, 32)
    rank = tl.zeros_like(place).to(tl.int32)
    before = tl.zeros_like(place)
    for at in range(0, found, 32):
        others = tl.load(places + at + lanes, mask=at + lanes < found, other=LOWEST)
        masses = mass(score_at(others) - top)
        above = others[None, :] > place[:, None]
        rank += tl.sum(above.to(tl.int32), axis=1)
        before += tl.sum(tl.where(above, masses[None, :], 0), axis=1)
    inside = place > LOWEST
    inside = inside & tl.where(by_mass, inside, rank < top_k)
    kept = tl.sum(tl.where(inside, mass(score_at(place) - top), 0), axis=0)
    reach = tl.where(by_mass, reach, top_p.to(tl.float64) * kept.to(tl.float64))
    inside = inside & tl.where(top_p < 1.0, before.to(tl.float64) < reach, inside)
    return tl.min(tl.where(inside, place, HIGHEST), axis=0)


@triton.jit
def measure_list(place, table, rule, parts, sums, row, splits, top, greedy):
    """What `measure_kernel` would read from the row again, but for ranks: all that is inside lies in `place`."""
    strategy = tl.load(rule + STRATEGY)
    if (greedy == 0) & (tl.load(rule + ACCEPT) == NORMAL) & (strategy != TOPP):
        z = score_at(place)
        ids = id_at(place)
        floor = tl.minimum(as_float(tl.load(rule + FLOOR)), 0.0)
        within = (place > LOWEST) & (z - top >= floor)
        lanes = tl.arange(0, MOST_SPLITS)
        there = lanes < splits
        if strategy == MATCH:
            k0, k1, k2 = random_words(rule, tl.load(table + DEPTH), strategy * 0)
            noisy = tl.where(within, z + gumbel(chances(ids, k0, k1, k2)), float("-inf"))
            own, own_at = lowest_of_best(noisy, ids)
            part = parts + (row * splits + lanes) * PART
            tl.store(part + OWN, tl.where(lanes == 0, as_bits(own), MINUS_INFINITY), mask=there)
            tl.store(part + OWN_ID, tl.where(lanes == 0, own_at, NONE_YET), mask=there)
        else:
            below = z - top
            masses = tl.where(within, mass(below), 0)
            total = tl.sum(masses, axis=0)
            mean = tl.sum(mean_of(masses, below), axis=0)
            own_sums = sums + (row * splits + lanes) * 2
            tl.store(own_sums, tl.where(lanes == 0, total, 0), mask=there)
            tl.store(own_sums + 1, tl.where(lanes == 0, mean, 0), mask=there)


@triton.jit
def mean_of(masses, below):
    """What each id adds to the mean of `below`, as mass."""
    fraction = masses.to(tl.float32) * ONE_UNIT
    return as_mass(fraction * tl.where(masses > 0, below, 0.0))


@triton.jit
def search(
    source, table, places, sums, tallies, splits, steps, found, low, high, top, inverse, top_k, top_p, by_mass,
    V: tl.constexpr, BLOCK: tl.constexpr, HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Of the ids with places in (low, high], a beginning is wanted: while under `top_k` ids come before one, or
    (`by_mass`) while what comes before has less than `top_p` of the mass of all. What is returned lies right under it;
    and how many ids were collected, if those in (low, high] are all among them, else 0.

    `low` and `high` close in: the ids above `high` are inside and so is the first at or below it; those at or below
    `low` are outside. A step counts and weighs what lies above PIVOTS places between them, until one id is left there.
    """
    low, high, count_low, count_high, mass_high, reach, step, few, collected = follow(
        table, sums, tallies, splits, steps, low, high, top_k, top_p, by_mass
    )
    listed = tl.maximum(found, collected)
    if few & (collected == 0) & (step < steps):
        listed = tl.load(table + FOUND_LATER)
    step = tl.maximum(step, 1)
    while (count_low - count_high > 1) & (high - low > 1):
        pivots = pivots_of(step, low, high)
        counted, weighed, least, most = weigh(
            source, table, places, listed, step * 0, step * 0 + 1, low, high, pivots, top, inverse, by_mass,
            V, BLOCK, HAS_EDITS, HAS_MASKS,
        )  # fmt: skip
        low, high, count_low, count_high, mass_high, reach = closer(
            low, high, count_low, count_high, mass_high, reach, pivots, counted, weighed, least, most,
            top_k, top_p, by_mass,
        )  # fmt: skip
        step += 1
    return low, collected


@triton.jit
def follow(table, sums, tallies, splits, steps, low, high, top_k, top_p, by_mass):
    """The first `steps` of a search, from what all programs of the row saw, until few enough ids are left between the
    bounds to be collected: where it stands then, after how many steps, whether few are left, and how many ids were
    collected in the first, if these are among them."""
    slots = tl.arange(0, PIVOTS)
    lanes = tl.arange(0, MOST_SPLITS)
    there = lanes < splits
    last = slots == PIVOTS - 1
    cut = under(tl.load(table + CUT))
    count_low = tl.full([], 2147483647, tl.int64)
    count_high = tl.full([], 0, tl.int64)
    mass_high = tl.full([], 0, tl.int64)
    reach = tl.full([], -1.0, tl.float64)
    step = splits * 0
    found = splits * 0
    few = splits < 0
    while (step < steps) & (few == 0):
        pivots = pivots_of(step, low, high)
        least, most = low, high
        if step == 0:
            pivots = tl.where(last, low, cut)
            counted = tl.where(last, 2147483647, tl.load(table + FOUND)).to(tl.int64)
            part = sums + (tl.program_id(0).to(tl.int64) * splits + lanes) * 2
            above = tl.sum(tl.load(part, mask=there, other=0), axis=0)
            weighed = tl.where(last, tl.sum(tl.load(part + 1, mask=there, other=0), axis=0), above)
        else:
            tally = tally_of(tallies, step - 1, lanes, splits)
            at = tally[:, None] + slots[None, :]
            counted = tl.sum(tl.load(at, mask=there[:, None], other=0), axis=0)
            weighed = tl.sum(tl.load(at + PIVOTS, mask=there[:, None], other=0), axis=0)
            least = tl.min(tl.load(tally + LEAST, mask=there, other=HIGHEST), axis=0)
            most = tl.max(tl.load(tally + MOST, mask=there, other=LOWEST), axis=0)
        low, high, count_low, count_high, mass_high, reach = closer(
            low, high, count_low, count_high, mass_high, reach, pivots, counted, weighed, least, most,
            top_k, top_p, by_mass,
        )  # fmt: skip
        if (step == 0) & (low == cut):
            found = tl.load(table + FOUND)
            found = tl.where(found <= CAPACITY, found, 0)
        few = (found > 0) | (count_low - count_high <= CAPACITY)
        step += 1
    return low, high, count_low, count_high, mass_high, reach, step, few, found


@triton.jit
def pivots_of(step, low, high):
    """First by distance from `high`, as masses are, with `low` the last; then evenly."""
    slots = tl.arange(0, PIVOTS)
    distance = tl.where(slots < 4, 0.5 + 0.75 * slots, (slots - 2.0) * (slots - 2.0))
    near = tl.where(slots == PIVOTS - 1, low, place_of(score_at(high) - distance, slots * 0))
    evenly = low + tl.maximum((high - low) // (PIVOTS + 1), 1) * (slots + 1)
    return tl.maximum(tl.minimum(tl.where(step == 1, near, evenly), high - 1), low)


@triton.jit
def closer(
    low, high, count_low, count_high, mass_high, reach, pivots, counted, weighed, least, most, top_k, top_p, by_mass
):
    """The bounds after a step that saw this many ids and this mass between each pivot and `high`, and that the lowest
    and highest place between the bounds are `least` and `most`."""
    counted += count_high
    weighed += mass_high
    if reach < 0.0:
        # In the first step the last pivot is `low`: above it lie all.
        count_low = tl.max(counted, axis=0)
        reach = top_p.to(tl.float64) * tl.max(weighed, axis=0).to(tl.float64)
    inside = tl.where(by_mass, weighed.to(tl.float64) < reach, counted < top_k)
    # Nothing between a bound and the id next to it: they move there.
    high = tl.minimum(tl.min(tl.where(inside, pivots, high), axis=0), most)
    low = tl.maximum(tl.max(tl.where(inside, low, pivots), axis=0), least - 1)
    count_high = tl.max(tl.where(inside, counted, count_high), axis=0)
    mass_high = tl.max(tl.where(inside, weighed, mass_high), axis=0)
    count_low = tl.min(tl.where(inside, count_low, counted), axis=0)
    return low, high, count_low, count_high, mass_high, reach


@triton.jit
def weigh(
    source, table, places, found, split, splits, low, high, pivots, top, inverse, by_mass,
    V: tl.constexpr, BLOCK: tl.constexpr, HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Of the ids with places in (low, high] how many lie above each pivot, their mass, and the lowest and the highest:
    of those collected, if any were `found`; else of a program's part of the row. Blocks with nothing between the bounds
    cost their read alone."""
    lanes = tl.arange(0, BLOCK)
    counts = tl.zeros([PIVOTS, BLOCK], tl.int32)
    masses = tl.zeros([PIVOTS, BLOCK], tl.int64)
    least = tl.full([BLOCK], 0, tl.int64) + high
    most = tl.full([BLOCK], 0, tl.int64) + low
    blocks = tl.where(found > 0, tl.cdiv(found, BLOCK), blocks_of(table, V, BLOCK, HAS_EDITS))
    for block in range(split, blocks, splits):
        if found > 0:
            at = block * BLOCK + lanes
            place = tl.load(places + at, mask=at < found, other=LOWEST)
        else:
            scores, ids = read(source, table, block, V, BLOCK, HAS_EDITS, HAS_MASKS)
            place = place_of(scores * inverse, ids)
        between = (place > low) & (place <= high)
        if tl.max(between.to(tl.int32), axis=0) > 0:
            least = tl.where(between & (place < least), place, least)
            most = tl.where(between & (place > most), place, most)
            above = between[None, :] & (place[None, :] > pivots[:, None])
            counts += above.to(tl.int32)
            if by_mass:
                masses += tl.where(above, mass(score_at(place) - top)[None, :], 0)
    counted = tl.sum(counts, axis=1).to(tl.int64)
    return counted, tl.sum(masses, axis=1), tl.min(least, axis=0), tl.max(most, axis=0)


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
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Program (row, split): of what is allowed the one chosen; or its mass (and, for TYPICAL, that times `below`);
    or how many are likelier than what was drafted for here."""
    wait_for_kernel_before()
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
        unknown = tl.load(own_table + MEASURED) == 0
        if normal & (strategy == MATCH) & filtered(rule) & unknown:
            k0, k1, k2 = random_words(rule, tl.load(own_table + DEPTH), split * 0)
            own = tl.full([], float("-inf"), tl.float32)
            own_at = tl.full([], NONE_YET, tl.int32)
            for block in tl.range(split, blocks, splits, num_stages=3):
                source = logits + row * STRIDE, entry_ids, entry_values, bits, bits_row
                scores, ids = read(source, own_table, block, V, BLOCK, HAS_EDITS, HAS_MASKS)
                z = scores * inverse
                within = allowed(z, ids, own_table, rule, top)
                # Mostly few ids are allowed: most blocks need no noise.
                if some(within):
                    z = tl.where(within, z, float("-inf"))
                    own, own_at = best_with_noise(z, ids, k0, k1, k2, own, own_at, own, TOGETHER)
            part = parts + (row * splits + split) * PART
            tl.store(part + OWN, as_bits(own))
            tl.store(part + OWN_ID, own_at)
        if normal & (strategy != MATCH) & (strategy != TOPP) & unknown:
            total = tl.zeros([BLOCK], tl.int64)
            mean = tl.zeros([BLOCK], tl.int64)
            for block in tl.range(split, blocks, splits, num_stages=3):
                source = logits + row * STRIDE, entry_ids, entry_values, bits, bits_row
                scores, ids = read(source, own_table, block, V, BLOCK, HAS_EDITS, HAS_MASKS)
                z = scores * inverse
                below = z - top
                masses = tl.where(allowed(z, ids, own_table, rule, top), mass(below), 0)
                total += masses
                if strategy == TYPICAL:
                    mean += mean_of(masses, below)
            tl.store(sums + (row * splits + split) * 2, tl.sum(total, axis=0))
            tl.store(sums + (row * splits + split) * 2 + 1, tl.sum(mean, axis=0))
        if normal & (strategy == TOPP):
            for child in range(row.to(tl.int32) + 1, tl.load(begins + b + 1)):
                token = tl.load(drafted + child)
                if (tl.load(parents + child) == row) & (token >= 0) & (token < V):
                    source = logits + row * STRIDE, entry_ids, entry_values, bits, bits_row
                    score = score_of(source, own_table, token, V, HAS_EDITS, HAS_MASKS)
                    here = score * inverse
                    likelier = tl.zeros([BLOCK], tl.int32)
                    for block in tl.range(split, blocks, splits, num_stages=3):
                        source = logits + row * STRIDE, entry_ids, entry_values, bits, bits_row
                        scores, ids = read(source, own_table, block, V, BLOCK, HAS_EDITS, HAS_MASKS)
                        z = scores * inverse
                        likelier += ((z > here) | ((z == here) & (ids < token))).to(tl.int32)
                    tl.store(parts + ((row * 0 + child) * splits + split) * PART + RANK, tl.sum(likelier, axis=0))
