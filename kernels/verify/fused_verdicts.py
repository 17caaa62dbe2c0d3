"""From what the rows say to a verdict: a program walks one sequence; what its last row chooses is read for then."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent import wait_for_kernel_before
from kernels.verify import questions
from kernels.verify.fused_numbers import (
    DEPTH,
    FIRST,
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
    keep,
    ln,
    lowest_of_best,
    mass,
    may_reach,
    random_words,
    read,
    score_of,
    uniform,
)
from kernels.verify.fused_rows import (
    ACCEPT,
    LANES,
    MATCH,
    MOST_SPLITS,
    NORMAL,
    OWN,
    PART,
    RANK,
    STRATEGY,
    TOPP,
    WORDS,
    allowed,
    merged,
    whole_of,
)

ALL = tl.constexpr(questions.ALL)
REJECTION = tl.constexpr(questions.REJECTION)
BLOCK_STRATEGY = tl.constexpr(questions.BLOCK)
TYPICAL = tl.constexpr(questions.TYPICAL)
CANDIDATES = tl.constexpr(questions.word_of("candidates"))
WINDOW = tl.constexpr(questions.word_of("window"))
EPSILON = tl.constexpr(questions.word_of("epsilon"))
DELTA = tl.constexpr(questions.word_of("delta"))

# How the last row of a walk chooses, in words of 32 bits.
MODE = tl.constexpr(0)  # 0: it has chosen; 1: from what is allowed; 2: from what a distribution leaves
LAST = tl.constexpr(1)  # the row
PLACE = tl.constexpr(2)  # where its token goes
REFUSED = tl.constexpr(3)  # drafted tokens of rows from here ..
REFUSED_END = tl.constexpr(4)  # .. to here that hang on it are out
PROBS = tl.constexpr(5)  # row of the distribution
WEIGHT = tl.constexpr(6)  # f32, of the target's probabilities
CHOICE = tl.constexpr(8)

# What a program of the last read keeps.
PICK = tl.constexpr(4)  # value and id of the best of the rest; value and id of the best of all


@triton.jit
def rank_of(parts, row, splits):
    lanes = tl.arange(0, MOST_SPLITS)
    part = parts + (row.to(tl.int64) * splits + lanes) * PART + RANK
    return tl.sum(tl.load(part, mask=lanes < splits, other=0), axis=0)


@triton.jit
def first_of(table, row):
    """The likeliest id of a row; -1 where it can't be trusted."""
    return tl.load(table + row.to(tl.int64) * ROW + FIRST)


@triton.jit
def opinion(
    batch, rule, row, token, V: tl.constexpr, STRIDE: tl.constexpr, HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr
):
    """What a row thinks of a token: whether it is allowed, how far below the likeliest, and its mass. The rows of a
    `batch` are (logits, table, entry_ids, entry_values, bits, mask_rows)."""
    logits, table, entry_ids, entry_values, bits, mask_rows = batch
    own_table = table + row.to(tl.int64) * ROW
    bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
    source = logits + row.to(tl.int64) * STRIDE, entry_ids, entry_values, bits, bits_row
    score = score_of(source, own_table, token, V, HAS_EDITS, HAS_MASKS)
    inverse, _greedy = inverse_of(rule)
    top = as_float(tl.load(own_table + TOP))
    z = score * inverse
    inside = allowed(z, token, own_table, rule, top)
    return inside, z - top, tl.where(inside, mass(z - top), 0)


@triton.jit
def target_prob_of(
    batch, rule, sums, row, token, splits,
    V: tl.constexpr, STRIDE: tl.constexpr, HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    _inside, _below, own = opinion(batch, rule, row, token, V, STRIDE, HAS_EDITS, HAS_MASKS)
    return own.to(tl.float64) / whole_of(sums, row, splits, 0).to(tl.float64)


@triton.jit
def draft_prob_of(probs, prob_rows, row, token, V: tl.constexpr, HAS_PROBS: tl.constexpr):
    """Where the distribution lies that a row's token was drawn from (-1: it is certain), and the token's part."""
    at = row * 0 - 1
    part = tl.full([], 1.0, tl.float64)
    if HAS_PROBS:
        at = tl.load(prob_rows + row)
        if at >= 0:
            part = tl.load(probs + at.to(tl.int64) * V + token).to(tl.float64)
    return at, part


@triton.jit
def joint_with(joint, target_prob, draft_prob):
    """The part of a chain that may stand, with one token more."""
    # Nothing is divided by 0.
    ratio = joint * target_prob / tl.where(draft_prob > 0.0, draft_prob, 1.0)
    ratio = tl.where(draft_prob > 0.0, tl.where(ratio < 1.0, ratio, 1.0), 1.0)
    return tl.where(target_prob == 0.0, 0.0, ratio)


@triton.jit
def stands_alone(table, drafted, row, end, V: tl.constexpr):
    """Whether a row is there, behind a token, and can be trusted."""
    there = row < end
    token = tl.load(drafted + row, mask=there, other=-1)
    first = tl.load(table + row.to(tl.int64) * ROW + FIRST, mask=there, other=-1)
    return there & (token >= 0) & (token < V) & (first >= 0)


@triton.jit
def is_chain(parents, begin, end):
    lanes = tl.arange(0, LANES)
    later = (lanes > 0) & (begin + lanes < end)
    above = tl.load(parents + begin + lanes, mask=later, other=-1)
    return tl.min(tl.where(later, (above == begin + lanes - 1).to(tl.int32), 1), axis=0) == 1


# Joint acceptance against distributions --------------------------------------------------------------------


@triton.jit(do_not_specialize=["splits"])
def joint_kernel(
    logits, rules, begins, drafted, parents, table, entry_ids, entry_values, bits, mask_rows, sums,
    probs, prob_rows, joints, splits,
    V: tl.constexpr, STRIDE: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Program b: of each row of a chain, how much of the chain up to it may stand; 0 where nobody asks."""
    wait_for_kernel_before()
    b = tl.program_id(0)
    begin = tl.load(begins + b)
    end = tl.load(begins + b + 1)
    rule = rules + b * WORDS
    _inverse, greedy = inverse_of(rule)
    for row in range(begin, end):
        tl.store(joints + row, 0.0)
    tl.debug_barrier()
    asked = (tl.load(rule + STRATEGY) == BLOCK_STRATEGY) & (tl.load(rule + ACCEPT) == NORMAL) & (greedy == 0)
    if asked & is_chain(parents, begin, end):
        batch = logits, table, entry_ids, entry_values, bits, mask_rows
        joint = tl.full([], 1.0, tl.float64)
        row = begin
        going = (row < end) & (tl.load(table + row.to(tl.int64) * ROW + FIRST, mask=row < end, other=-1) >= 0)
        while going:
            going = stands_alone(table, drafted, row + 1, end, V)
            if going:
                token = tl.load(drafted + row + 1)
                target_prob = target_prob_of(
                    batch, rule, sums, row, token, splits, V, STRIDE, HAS_EDITS, HAS_MASKS
                )
                _at, draft_prob = draft_prob_of(probs, prob_rows, row + 1, token, V, True)
                joint = joint_with(joint, target_prob, draft_prob)
                tl.store(joints + row + 1, joint)
                row += 1


@triton.jit(do_not_specialize=["splits"])
def rest_kernel(
    logits, rules, begins, table, entry_ids, entry_values, bits, mask_rows, sums, probs, prob_rows, joints,
    splits,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr,
):  # fmt: skip
    """Program (row, split): the mass of max(joint * target_probs - draft_probs, 0), for the row's next token."""
    wait_for_kernel_before()
    row = tl.program_id(0)
    split = tl.program_id(1)
    own_table = table + row.to(tl.int64) * ROW
    b = tl.load(own_table + SEQUENCE)
    if b >= 0:
        joint = tl.load(joints + row)
        at = tl.load(prob_rows + row + 1, mask=row + 1 < tl.load(begins + b + 1), other=-1)
        if (joint > 0.0) & (at >= 0):
            rule = rules + b * WORDS
            inverse, _greedy = inverse_of(rule)
            bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
            source = logits + row.to(tl.int64) * STRIDE, entry_ids, entry_values, bits, bits_row
            top = as_float(tl.load(own_table + TOP))
            scale = tl.div_rn(tl.full([], 1.0, tl.float32), whole_of(sums, row, splits, 0).to(tl.float32))
            weight = joint.to(tl.float32)
            rest = tl.zeros([BLOCK], tl.int64)
            for block in range(split, blocks_of(own_table, V, BLOCK, HAS_EDITS), splits):
                scores, ids = read(source, own_table, block, V, BLOCK, HAS_EDITS, HAS_MASKS)
                z = scores * inverse
                masses = tl.where(allowed(z, ids, own_table, rule, top), mass(z - top), 0)
                drawn = tl.load(probs + at.to(tl.int64) * V + ids, mask=ids < V, other=0.0)
                left = masses.to(tl.float32) * scale * weight - drawn
                rest += as_mass(tl.where(left > 0.0, left, 0.0))
            tl.store(sums + (row.to(tl.int64) * splits + split) * 2 + 1, tl.sum(rest, axis=0))


# The walk --------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["splits"])
def walk_kernel(
    logits, rules, begins, drafted, parents, table, entry_ids, entry_values, bits, mask_rows, parts, sums,
    probs, prob_rows, choices, tokens, rows, accepted, failed, splits,
    V: tl.constexpr, STRIDE: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr, HAS_PROBS: tl.constexpr,
):  # fmt: skip
    """Program b: which rows of a sequence stand, and how the last of them chooses."""
    wait_for_kernel_before()
    b = tl.program_id(0)
    begin = tl.load(begins + b)
    end = tl.load(begins + b + 1)
    rule = rules + b * WORDS
    choice = choices + b * CHOICE
    batch = logits, table, entry_ids, entry_values, bits, mask_rows
    lanes = tl.arange(0, LANES)
    here = begin + lanes < end
    tokens_here = tl.load(drafted + begin + lanes, mask=here, other=-1)
    above = tl.load(parents + begin + lanes, mask=here, other=-2)
    is_token = here & (tokens_here >= 0) & (tokens_here < V)
    _inverse, greedy = inverse_of(rule)
    accept = tl.load(rule + ACCEPT)
    strategy = tl.where(greedy, MATCH, tl.load(rule + STRATEGY))
    chain = is_chain(parents, begin, end)
    strategy = tl.where((strategy == BLOCK_STRATEGY) & (chain == 0), REJECTION, strategy)
    one_by_one = (accept != NORMAL) | (strategy == MATCH) | (strategy == REJECTION)

    row = begin
    place = begin * 0
    own = begin * 0
    mode = tl.where(greedy | ((accept == NORMAL) & (strategy == MATCH)), 0, 1)
    refused = begin * 0
    refused_end = begin * 0
    probs_at = begin * 0
    weight = tl.full([], 1.0, tl.float32)
    bad = (tl.load(table + begin.to(tl.int64) * ROW + FIRST, mask=end > begin, other=0) < 0).to(tl.int32)
    if (end > begin) & (bad == 0):
        if one_by_one:
            going = begin * 0 + 1
            while going == 1:
                first = first_of(table, row)
                child = begin * 0 + LANES
                if first < 0:
                    bad = begin * 0 + 1
                else:
                    own = first
                    children = is_token & (above == row)
                    if accept != NORMAL:
                        if accept == ALL:
                            child = tl.min(tl.where(children, lanes, LANES), axis=0)
                    elif strategy == MATCH:
                        if greedy == 0:
                            _best, own = merged(parts, row, splits, OWN)
                        child = tl.min(tl.where(children & (tokens_here == own), lanes, LANES), axis=0)
                    else:
                        left = whole_of(sums, row, splits, 0)
                        guess = tl.min(tl.where(children, lanes, LANES), axis=0)
                        refused = begin + guess
                        refused_end = begin + 1 + tl.max(tl.where(children, lanes, -1), axis=0)
                        while guess < LANES:
                            token = tl.load(drafted + begin + guess)
                            again = children & (lanes < guess) & (tokens_here == token)
                            _inside, _below, mine = opinion(batch, rule, row, token, V, STRIDE, HAS_EDITS, HAS_MASKS)
                            mine = tl.where(tl.max(again.to(tl.int32), axis=0) > 0, 0, mine)
                            chance = uniform(rule, guess)
                            at, draft_prob = draft_prob_of(probs, prob_rows, begin + guess, token, V, HAS_PROBS)
                            taken = chance * draft_prob * left.to(tl.float64) < mine.to(tl.float64)
                            if taken:
                                child = guess
                                guess = begin * 0 + LANES
                            elif at >= 0:
                                mode = begin * 0 + 2
                                probs_at = at
                                guess = begin * 0 + LANES
                            else:
                                left -= mine
                                guess = tl.min(tl.where(children & (lanes > guess), lanes, LANES), axis=0)
                if child < LANES:
                    tl.store(tokens + begin + place, tl.load(drafted + begin + child))
                    tl.store(rows + begin + place, row)
                    place += 1
                    row = begin + child
                else:
                    going = begin * 0
            tl.store(rows + begin + place, row)
        else:
            if strategy == BLOCK_STRATEGY:
                joint = tl.full([], 1.0, tl.float64)
                stood = joint
                length = begin * 0
                stands = begin * 0
                ok = stands_alone(table, drafted, begin + 1, end, V)
                target_prob = joint
                if ok:
                    target_prob = target_prob_of(
                        batch, rule, sums, begin, tl.load(drafted + begin + 1), splits, V, STRIDE, HAS_EDITS, HAS_MASKS
                    )
                while ok:
                    length += 1
                    row = begin + length
                    at, draft_prob = draft_prob_of(probs, prob_rows, row, tl.load(drafted + row), V, HAS_PROBS)
                    joint = joint_with(joint, target_prob, draft_prob)
                    chance = joint
                    ok = stands_alone(table, drafted, row + 1, end, V)
                    if ok:
                        token = tl.load(drafted + row + 1)
                        target_prob = target_prob_of(
                            batch, rule, sums, row, token, splits, V, STRIDE, HAS_EDITS, HAS_MASKS
                        )
                        rest = joint * (1.0 - target_prob)
                        at, draft_prob = draft_prob_of(probs, prob_rows, row + 1, token, V, HAS_PROBS)
                        if at >= 0:
                            rest = whole_of(sums, row, splits, 1).to(tl.float64) * ONE_UNIT
                        safe = tl.where(rest > 0.0, rest + 1.0 - chance, 1.0)
                        chance = tl.where(rest > 0.0, rest / safe, 0.0)
                    if uniform(rule, length) < chance:
                        stands = length
                        stood = joint
                row = begin + stands
                if stands < length:
                    refused = row + 1
                    refused_end = row + 2
                    at, draft_prob = draft_prob_of(probs, prob_rows, row + 1, tl.load(drafted + row + 1), V, HAS_PROBS)
                    if at >= 0:
                        mode = begin * 0 + 2
                        probs_at = at
                        weight = stood.to(tl.float32)
                place = stands
            else:
                stand = (lanes == 0).to(tl.int32)
                for at in range(1, end - begin):
                    parent = tl.load(parents + begin + at)
                    sits = tl.sum(tl.where(begin + lanes == parent, stand, 0), axis=0) > 0
                    if sits & stands_alone(table, drafted, begin + at, end, V):
                        inside, below, _mass = opinion(
                            batch, rule, parent, tl.load(drafted + begin + at), V, STRIDE, HAS_EDITS, HAS_MASKS
                        )
                        if strategy == TOPP:
                            rank = rank_of(parts, begin + at, splits)
                            good = inside & (rank < tl.load(rule + CANDIDATES))
                        else:
                            total = whole_of(sums, parent, splits, 0)
                            mean = whole_of(sums, parent, splits, 1).to(tl.float64) / total.to(tl.float64)
                            whole = (ln(total.to(tl.float32)) - 27.725887298583984).to(tl.float64)
                            least = as_float(tl.load(rule + EPSILON)).to(tl.float64)
                            typical = as_float(tl.load(rule + DELTA)).to(tl.float64) - (whole - mean)
                            least = tl.where(typical < least, typical, least)
                            good = inside & (below.to(tl.float64) - whole > least)
                        if good:
                            stand = tl.where(lanes == at, 1, stand)
                depths = tl.load(table + (begin + lanes).to(tl.int64) * ROW + DEPTH, mask=here, other=-1)
                depths = tl.where(stand > 0, depths, -1)
                place = tl.max(depths, axis=0)
                last = tl.min(tl.where(depths == place, lanes, LANES), axis=0)
                window = tl.load(rule + WINDOW)
                if (strategy == TOPP) & chain & (window > 0) & (last + 1 + window < end - begin):
                    fits = stands_alone(table, drafted, begin + last + 1, end, V)
                    at = begin + last
                    while fits & (at < begin + last + 1 + window):
                        _inside, below, _mass = opinion(
                            batch, rule, at, tl.load(drafted + at + 1), V, STRIDE, HAS_EDITS, HAS_MASKS
                        )
                        wanted = tl.where(at == begin + last, 1, 0)
                        rank = rank_of(parts, at + 1, splits)
                        fits = (rank == wanted) & (below > float("-inf"))
                        at += 1
                        if fits & (at <= begin + last + window):
                            fits = stands_alone(table, drafted, at + 1, end, V)
                    if fits:
                        last = last + 1 + window
                        place = last
                row = begin + last
            # The way back up: a token was accepted by the row before the one that stands behind it.
            up = row
            for back in range(0, place):
                at = begin + place - 1 - back
                tl.store(tokens + at, tl.load(drafted + up))
                tl.store(rows + at + 1, up)
                up = tl.load(parents + up)
            tl.store(rows + begin, begin)
        tl.store(tokens + begin + place, own)
    if end <= begin:
        mode = begin * 0
    if bad == 1:
        mode = begin * 0
        place = begin * 0
    tl.store(accepted + b, place)
    tl.store(failed + b, bad)
    tl.store(choice + MODE, mode)
    tl.store(choice + LAST, row)
    tl.store(choice + PLACE, begin + place)
    tl.store(choice + REFUSED, tl.where(mode == 1, refused, 0))
    tl.store(choice + REFUSED_END, tl.where(mode == 1, refused_end, 0))
    tl.store(choice + PROBS, probs_at)
    tl.store(choice + WEIGHT, as_bits(weight))


# What the last row chooses ---------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["splits", "pick_splits"])
def pick_kernel(
    logits, rules, drafted, parents, table, entry_ids, entry_values, bits, mask_rows, sums, probs, choices, picks,
    splits, pick_splits,
    V: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_EDITS: tl.constexpr, HAS_MASKS: tl.constexpr, HAS_PROBS: tl.constexpr,
):  # fmt: skip
    """Program (b, split): of the last row that stands, the best of what is allowed and wasn't refused; and of what
    a distribution leaves."""
    wait_for_kernel_before()
    b = tl.program_id(0)
    split = tl.program_id(1)
    choice = choices + b * CHOICE
    mode = tl.load(choice + MODE)
    if mode > 0:
        row = tl.load(choice + LAST)
        own_table = table + row.to(tl.int64) * ROW
        rule = rules + b * WORDS
        inverse, _greedy = inverse_of(rule)
        bits_row = tl.load(mask_rows + row) if HAS_MASKS else 0
        source = logits + row.to(tl.int64) * STRIDE, entry_ids, entry_values, bits, bits_row
        top = as_float(tl.load(own_table + TOP))
        k0, k1, k2 = random_words(rule, tl.load(own_table + DEPTH), split * 0)
        refused = tl.load(choice + REFUSED)
        refused_end = tl.load(choice + REFUSED_END)
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        at = tl.full([BLOCK], NONE_YET, tl.int32)
        rest = best
        rest_at = at
        reach = tl.full([], float("-inf"), tl.float32)
        for block in tl.range(split, blocks_of(own_table, V, BLOCK, HAS_EDITS), pick_splits, num_stages=3):
            scores, ids = read(source, own_table, block, V, BLOCK, HAS_EDITS, HAS_MASKS)
            z = scores * inverse
            inside = allowed(z, ids, own_table, rule, top)
            w = chances(ids, k0, k1, k2)
            if tl.max((inside & (may_reach(z, w, reach) | (mode == 2))).to(tl.int32), axis=0) > 0:
                noise = gumbel(w)
                left = inside
                for child in range(refused, refused_end):
                    hangs = tl.load(parents + child) == row
                    left = left & ((ids != tl.load(drafted + child)) | (hangs == 0))
                best, at = keep(best, at, tl.where(left, z + noise, float("-inf")), ids)
                reach = tl.max(best, axis=0)
                if HAS_PROBS and mode == 2:
                    whole = whole_of(sums, row, splits, 0).to(tl.float32)
                    scale = tl.div_rn(tl.full([], 1.0, tl.float32), whole)
                    weight = as_float(tl.load(choice + WEIGHT))
                    drawn = probs + tl.load(choice + PROBS).to(tl.int64) * V + ids
                    masses = tl.where(inside, mass(z - top), 0).to(tl.float32)
                    over = masses * scale * weight - tl.load(drawn, mask=ids < V, other=0.0)
                    kept = over > ONE_UNIT
                    value = tl.where(kept, ln(tl.where(kept, over, 1.0)) + noise, float("-inf"))
                    rest, rest_at = keep(rest, rest_at, value, ids)
        pick = picks + (b * pick_splits + split) * PICK
        value, token = lowest_of_best(rest, rest_at)
        tl.store(pick, as_bits(value))
        tl.store(pick + 1, token)
        value, token = lowest_of_best(best, at)
        tl.store(pick + 2, as_bits(value))
        tl.store(pick + 3, token)


@triton.jit(do_not_specialize=["pick_splits"])
def finish_kernel(choices, picks, tokens, pick_splits):
    """Program b: the best of all its picks, where the last row's token goes."""
    wait_for_kernel_before()
    b = tl.program_id(0)
    choice = choices + b * CHOICE
    if tl.load(choice + MODE) > 0:
        lanes = tl.arange(0, MOST_SPLITS)
        pick = picks + (b * pick_splits + lanes) * PICK
        there = lanes < pick_splits
        values = as_float(tl.load(pick, mask=there, other=MINUS_INFINITY))
        value, token = lowest_of_best(values, tl.load(pick + 1, mask=there, other=NONE_YET))
        values = as_float(tl.load(pick + 2, mask=there, other=MINUS_INFINITY))
        best, at = lowest_of_best(values, tl.load(pick + 3, mask=there, other=NONE_YET))
        # Where everything was refused, the lowest id.
        at = tl.where(best > float("-inf"), at, 0)
        tl.store(tokens + tl.load(choice + PLACE), tl.where(value > float("-inf"), token, at))
