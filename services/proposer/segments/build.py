"""Sorts a segment's places, merges sorted ones and makes the index. Compiled by numba, and run without the
interpreter's lock, so that drafting goes on beside it. loops.py defines the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from kernels.cpu_cache import kept_on_disk
from services.proposer.native import Ints, Longs, Record, Records, carray, ints_at, loop

Bytes = npt.NDArray[np.uint8]

# `left` counts tokens in a byte.
MOST_DEPTH = 255
_DIGITS = 1 << 16


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """As native.py's, and without the interpreter's lock."""
    with kept_on_disk(function) as cache:
        return numba.njit(error_model="numpy", cache=cache, nogil=True)(function)


# Sorting ----------------------------------------------------------------------------------------------------


@loop
def _left(text: Ints, depth: int) -> Bytes:
    """The number of tokens up to and including each place, at most `depth`; 0 at separators."""
    left = np.empty(text.shape[0], np.uint8)
    run = 0
    for place in range(text.shape[0]):
        run = 0 if text[place] < 0 else min(run + 1, depth)
        left[place] = run
    return left


@loop
def _by_digit(text: Ints, places: Ints, shift: int, out: Ints) -> None:
    """Sorts by 16 bits of the tokens; stable."""
    begins = np.zeros(_DIGITS + 1, np.int64)
    for place in places:
        begins[(text[place] >> shift & (_DIGITS - 1)) + 1] += 1
    for digit in range(_DIGITS):
        begins[digit + 1] += begins[digit]
    for place in places:
        digit = text[place] >> shift & (_DIGITS - 1)
        out[begins[digit]] = place
        begins[digit] += 1


@loop
def _refined(positions: Ints, rank: Ints, left: Bytes, known: int, step: int, spare: Ints, begins: Ints) -> None:
    """Places sorted by `known` tokens become sorted by `known + step`.

    The places `step` before them are sorted already: in that order, each place goes to the next seat of its group.
    Places whose text begins within the known tokens come first.
    """
    count = 0
    for place in range(left.shape[0]):
        if 0 < left[place] <= known:
            spare[count] = place
            count += 1
    for before in positions:
        place = before + step
        if place < left.shape[0] and left[place] > known:
            spare[count] = place
            count += 1
    for at in range(begins.shape[0]):
        begins[at] = at
    for place in spare:
        group = rank[place]
        positions[begins[group]] = place
        begins[group] += 1


@loop
def _ranked(positions: Ints, rank: Ints, left: Bytes, known: int, step: int, fresh: Ints) -> int:
    """Equal places get the same rank, the first seat of their group. Returns the number of groups."""
    groups = group = 0
    before, before_second = -1, -1
    for at in range(positions.shape[0]):
        place = positions[at]
        second = rank[place - step] if left[place] > known else -1
        if before < 0 or rank[place] != rank[before] or second != before_second:
            groups += 1
            group = at
        fresh[place] = group
        before, before_second = place, second
    return groups


@_kept
def sort(text: Ints, depth: int, positions: Ints) -> None:
    """Fills `positions`, one for each token. The known tokens double each time, so repetitive text takes no longer."""
    left = _left(text, depth)
    spare, begins = np.empty_like(positions), np.empty_like(positions)
    rank, fresh = np.empty_like(text), np.empty_like(text)
    count = 0
    for place in range(text.shape[0]):
        if left[place]:
            begins[count] = place
            count += 1
    _by_digit(text, begins, 0, spare)
    _by_digit(text, spare, 16, positions)
    groups = group = 0
    for at in range(count):
        if at == 0 or text[positions[at]] != text[positions[at - 1]]:
            groups += 1
            group = at
        rank[positions[at]] = group
    known = 1
    while known < depth and groups < count:
        step = min(known, depth - known)
        _refined(positions, rank, left, known, step, spare, begins)
        groups = _ranked(positions, rank, left, known, step, fresh)
        rank, fresh = fresh, rank
        known += step


@_kept
def make_index(text: Ints, positions: Ints, step: int, index: Ints) -> None:
    """The last tokens up to every step-th place; beyond a separator there are only separators."""
    for row in range(index.shape[0]):
        place, ended = positions[row * step], False
        for at in range(index.shape[1]):
            ended = ended or text[place - at] < 0
            index[row, at] = -1 if ended else text[place - at]


# Merging ----------------------------------------------------------------------------------------------------

# The address of a source's places, their number, how many are merged, and where its text begins in the whole.
SOURCE = np.dtype([(name, np.int64) for name in ("positions_at", "count", "merged", "base")])
# Places whose keys are looked up at a time.
_AHEAD = 64


@loop
def _key(text: Ints, depth: int, place: int) -> int:
    """The first two tokens in one number, which decides most comparisons."""
    second = np.int64(text[place - 1]) + 1 if depth > 1 else 0
    return np.int64(text[place]) << 32 | second  # type: ignore[return-value]


@loop
def _places(source: Record) -> Ints:
    return carray(ints_at(source.positions_at), source.count)  # type: ignore[no-any-return]


@loop
def _advance(text: Ints, depth: int, sources: Records, ahead: Longs, keys: Longs, places: Longs, number: int) -> None:
    """To the source's next place. Keys are looked up many at a time, so that cache misses overlap."""
    source = sources[number]
    positions, merged = _places(source), source.merged
    if merged % _AHEAD == 0 or places[number] < 0:
        for at in range(merged, min(source.count, (merged // _AHEAD + 1) * _AHEAD)):
            ahead[number, at % _AHEAD] = _key(text, depth, positions[at] + source.base)
    keys[number] = ahead[number, merged % _AHEAD]
    places[number] = positions[merged] + source.base


@loop
def _is_before(text: Ints, depth: int, keys: Longs, places: Longs, one: int, other: int) -> bool:
    """Whether one source's next place comes before the other's; of equals, the earlier text's."""
    if keys[one] != keys[other]:
        return bool(keys[one] < keys[other])
    first, second = places[one], places[other]
    if text[first - 1] >= 0:
        for at in range(2, depth):
            token = text[first - at]
            if token != text[second - at]:
                return bool(token < text[second - at])
            if token < 0:
                break
    return one < other


@loop
def _sink(text: Ints, depth: int, keys: Longs, places: Longs, heap: Longs, size: int, at: int) -> None:
    """Restores the heap below `at`."""
    moving = heap[at]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and _is_before(text, depth, keys, places, heap[below + 1], heap[below]):
            below += 1
        if not _is_before(text, depth, keys, places, heap[below], moving):
            break
        heap[at] = heap[below]
        at = below
    heap[at] = moving


@_kept
def merge_some(text: Ints, depth: int, sources: Records, out: Ints) -> None:
    """The next places of all sources, as many as `out` has room for. `text` is the concatenation of all."""
    count = sources.shape[0]
    keys, places, heap = np.empty(count, np.int64), np.full(count, -1), np.empty(count, np.int64)
    ahead = np.empty((count, _AHEAD), np.int64)
    size = 0
    for source in range(count):
        if sources[source].merged < sources[source].count:
            _advance(text, depth, sources, ahead, keys, places, source)
            heap[size] = source
            size += 1
    for at in range(size // 2 - 1, -1, -1):
        _sink(text, depth, keys, places, heap, size, at)
    for at in range(out.shape[0]):
        source = heap[0]
        out[at] = places[source]
        sources[source].merged += 1
        if sources[source].merged < sources[source].count:
            _advance(text, depth, sources, ahead, keys, places, source)
        else:
            size -= 1
            heap[0] = heap[size]
        _sink(text, depth, keys, places, heap, size, 0)
