"""Edited scores: penalties, biases and what is forbidden are few ids of a row, and their scores are kept in a list.

While a batch is judged, the logits have a hole (-inf) where a score was edited, so that who reads a row needs not
ask of every id whether it is one of those; afterwards what was there is put back, bit for bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.dependent import wait_for_kernel_before
from kernels.verify.fused_numbers import DEPTH, ENTRIES, ENTRY_COUNT, ROW, SEQUENCE, as_float
from kernels.verify.fused_rows import FREQUENCY, PRESENCE, REPETITION, WORDS

CHUNK = tl.constexpr(128)
PATH = tl.constexpr(64)  # LONGEST_DRAFT


@triton.jit
def penalties_of(rule, mask):
    repetition = as_float(tl.load(rule + REPETITION, mask=mask, other=0x3F800000))
    presence = as_float(tl.load(rule + PRESENCE, mask=mask, other=0))
    frequency = as_float(tl.load(rule + FREQUENCY, mask=mask, other=0))
    return repetition, presence, frequency, (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0)


@triton.jit
def lengths(begins, index, mask):
    return tl.load(begins + index + 1, mask=mask, other=0) - tl.load(begins + index, mask=mask, other=0)


@triton.jit
def entries_before(
    rules, begins, seen_begins, bias_begins, forbidden_begins, b,
    HAS_LISTS: tl.constexpr,
):  # fmt: skip
    """How many entries the rows of the sequences before `b` have."""
    lanes = tl.arange(0, CHUNK)
    count = b * 0
    for at in range(0, b, CHUNK):
        before = at + lanes < b
        rows = lengths(begins, at + lanes, before)
        _, _, _, penalised = penalties_of(rules + (at + lanes) * WORDS, before)
        # A row has an entry for every token that it stands behind: at most as many as there are rows before it.
        entries = tl.where(penalised, rows * (rows - 1) // 2, 0)
        if HAS_LISTS:
            entries += rows * tl.where(penalised, lengths(seen_begins, at + lanes, before), 0)
            entries += rows * lengths(bias_begins, at + lanes, before)
        count += tl.sum(tl.where(before, entries, 0), axis=0)
    if HAS_LISTS:
        count += tl.load(forbidden_begins + tl.load(begins + b))
    return count


@triton.jit
def found_in(ids, listed, values, begin, end, WIDTH: tl.constexpr):
    """Which of `ids` a list names (as 1), and the values there."""
    found = tl.zeros_like(ids)
    value = (ids * 0).to(values.dtype.element_ty)
    lanes = tl.arange(0, WIDTH)
    for at in range(begin, end, WIDTH):
        there = at + lanes < end
        same = ids[:, None] == tl.load(listed + at + lanes, mask=there, other=-1)[None, :]
        found += tl.sum(same.to(tl.int32), axis=1)
        value += tl.sum(tl.where(same, tl.load(values + at + lanes, mask=there, other=0)[None, :], 0), axis=1)
    return found, value


@triton.jit
def times_on_path(ids, drafted, parents, row):
    """How often each of `ids` was drafted on the way to this row."""
    times = tl.zeros_like(ids)
    while tl.load(parents + row) >= 0:
        times += (ids == tl.load(drafted + row)).to(tl.int32)
        row = tl.load(parents + row)
    return times


@triton.jit
def path_of(drafted, parents, row):
    """The tokens on the way to this row, last first; -1 behind them."""
    lanes = tl.arange(0, PATH)
    path = tl.full([PATH], -1, tl.int32)
    at = row * 0
    while tl.load(parents + row) >= 0:
        path = tl.where(lanes == at, tl.load(drafted + row), path)
        row = tl.load(parents + row)
        at += 1
    return path


@triton.jit
def penalise(scores, times, repetition, presence, frequency):
    """Of ids that count, of which some were generated."""
    repeated = tl.where(scores > 0, tl.div_rn(scores, tl.zeros_like(scores) + repetition), scores * repetition)
    scores = tl.where(repetition != 1.0, repeated, scores)
    less = scores - (frequency * times.to(tl.float32) + presence)
    lessened = tl.where((presence != 0.0) | (frequency != 0.0), times, 0) > 0
    return tl.where(lessened, less, scores)


@triton.jit(do_not_specialize=["capacity"])
def edit_kernel(
    logits, rules, begins, drafted, parents, table,
    seen_begins, seen_ids, seen_counts, bias_begins, bias_ids, bias_values, forbidden_begins, forbidden_ids,
    entry_ids, entry_values, entry_raw, capacity,
    V: tl.constexpr, STRIDE: tl.constexpr, HAS_LISTS: tl.constexpr,
):  # fmt: skip
    """Program row: its entries (an id named twice has one; the others' id is V), then the holes."""
    wait_for_kernel_before()
    row = tl.program_id(0)
    table += row.to(tl.int64) * ROW
    logits += row.to(tl.int64) * STRIDE
    b = tl.load(table + SEQUENCE)
    if b >= 0:
        repetition, presence, frequency, penalised = penalties_of(rules + b * WORDS, b >= 0)
        place = row - tl.load(begins + b)
        depth = tl.where(penalised, tl.load(table + DEPTH), 0)
        start = entries_before(
            rules, begins, seen_begins, bias_begins, forbidden_begins, b, HAS_LISTS
        ) + tl.where(penalised, place * (place - 1) // 2, 0)  # fmt: skip
        count = depth
        seen = depth * 0
        if HAS_LISTS:
            seen_begin = tl.load(seen_begins + b)
            seen = tl.where(penalised, tl.load(seen_begins + b + 1) - seen_begin, 0)
            bias_begin = tl.load(bias_begins + b)
            bias = tl.load(bias_begins + b + 1) - bias_begin
            forbidden_begin = tl.load(forbidden_begins + row)
            forbidden = tl.load(forbidden_begins + row + 1) - forbidden_begin
            start += place * (seen + bias) + forbidden_begin - tl.load(forbidden_begins + tl.load(begins + b))
            count += seen + bias + forbidden
        room = (count == 0) | (start + count <= capacity)
        tl.store(table + ENTRIES, start)
        tl.store(table + ENTRY_COUNT, tl.where(room, count, -1))
        if room & (count > 0):
            lanes = tl.arange(0, CHUNK)
            for at in range(0, count, CHUNK):
                # Which list an entry comes from, and whether one before it names its id.
                index = at + lanes
                there = index < count
                ids = tl.full([CHUNK], -1, tl.int32)
                path = path_of(drafted, parents, row)
                from_path = (index >= seen) & (index < seen + depth)
                nth = tl.arange(0, PATH)
                ids = tl.sum(tl.where(index[:, None] - seen == nth[None, :], path[None, :], 0), axis=1)
                ids = tl.where(from_path, ids, -1)
                if HAS_LISTS:
                    ids = tl.load(seen_ids + seen_begin + index, mask=index < seen, other=0) + tl.where(
                        index < seen, 0, ids
                    )
                    in_bias = index - seen - depth
                    from_bias = (in_bias >= 0) & (in_bias < bias)
                    ids = tl.where(from_bias, tl.load(bias_ids + bias_begin + in_bias, mask=from_bias, other=0), ids)
                    from_forbidden = there & (in_bias >= bias)
                    ids = tl.where(
                        from_forbidden,
                        tl.load(forbidden_ids + forbidden_begin + in_bias - bias, mask=from_forbidden, other=0),
                        ids,
                    )
                valid = there & (ids >= 0) & (ids < V)
                times = tl.where(penalised, times_on_path(ids, drafted, parents, row), 0)
                # A token further up the path that is the same comes first.
                earlier = (ids[:, None] == path[None, :]) & (nth[None, :] < index[:, None] - seen)
                repeats = from_path & (tl.sum(earlier.to(tl.int32), axis=1) > 0)
                counts = times > 0
                if HAS_LISTS:
                    in_seen, generated = found_in(ids, seen_ids, seen_counts, seen_begin, seen_begin + seen, 32)
                    repeats = repeats | ((index >= seen) & (in_seen > 0))
                    repeats = repeats | ((in_bias >= 0) & (times > 0))
                    times += generated
                    counts = counts | (in_seen > 0)
                    biased, bias_value = found_in(ids, bias_ids, bias_values, bias_begin, bias_begin + bias, 32)
                    repeats = repeats | (from_forbidden & (biased > 0))
                    banned, _ = found_in(
                        ids, forbidden_ids, forbidden_ids, forbidden_begin, forbidden_begin + forbidden, 32
                    )
                owner = valid & (repeats == 0)
                raw = tl.load(logits + ids, mask=owner, other=0.0)
                scores = raw.to(tl.float32)
                scores = tl.where(counts, penalise(scores, times, repetition, presence, frequency), scores)
                if HAS_LISTS:
                    scores = tl.where(biased > 0, scores + bias_value, scores)
                    scores = tl.where(banned > 0, float("-inf"), scores)
                tl.store(entry_ids + start + index, tl.where(owner, ids, V), mask=there)
                tl.store(entry_values + start + index, tl.where(owner, scores, float("-inf")), mask=there)
                tl.store(entry_raw + start + index, raw, mask=there)
            # All has been read before the first hole is made.
            tl.debug_barrier()
            for at in range(0, count, CHUNK):
                ids = tl.load(entry_ids + start + at + lanes, mask=at + lanes < count, other=V)
                hole = tl.full([CHUNK], float("-inf"), tl.float32).to(logits.dtype.element_ty)
                tl.store(logits + ids, hole, mask=ids < V)


@triton.jit
def put_back_kernel(logits, table, entry_ids, entry_raw, V: tl.constexpr, STRIDE: tl.constexpr):
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    table += row * ROW
    if tl.load(table + SEQUENCE) >= 0:
        lanes = tl.arange(0, CHUNK)
        start = tl.load(table + ENTRIES)
        count = tl.load(table + ENTRY_COUNT)
        for at in range(0, count, CHUNK):
            there = at + lanes < count
            ids = tl.load(entry_ids + start + at + lanes, mask=there, other=V)
            raw = tl.load(entry_raw + start + at + lanes, mask=there)
            tl.store(logits + row * STRIDE + ids, raw, mask=ids < V)
