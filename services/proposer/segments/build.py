"""Sorts a segment's places, and merges sorted ones: loops.py defines the order. Nothing here holds the interpreter's
lock for long, so drafting goes on beside it."""

from __future__ import annotations

import functools

import numpy as np

from services.proposer.native import Ints, Longs, Record, Records, carray, ints_at, kept, loop


def sort(text: Ints, depth: int, positions: Ints) -> None:
    """Fills `positions`, one for each token. A round doubles the number of tokens by which places are sorted: it sorts
    them by the ranks of the places before them. Equal ones keep the text's order. Needs about 50 bytes a token."""
    separators = np.maximum.accumulate(np.where(text < 0, np.arange(len(text), dtype=np.int32), 0))
    places = np.flatnonzero(text >= 0)
    seats = np.arange(len(places))
    rank, known, step = text.copy(), 0, 0
    while known < depth and len(places):
        key = np.take(rank, places).astype(np.int64) << 32
        if step:
            before = places - step
            # 0: its text begins within the known tokens.
            key += np.where(before > np.take(separators, places), np.take(rank, before, mode="clip") + 1, 0)
        order = np.argsort(key, kind="stable")
        key, places = np.take(key, order), np.take(places, order)
        differs = np.append(True, key[1:] != key[:-1])
        # Equal places get the same rank, the first seat of their group.
        np.put(rank, places, np.maximum.accumulate(np.where(differs, seats, 0)))
        if differs.all():
            break
        known += step or 1
        step = min(known, depth - known)
    positions[:] = places


# The address of a source's places, their number, how many are merged, and where its text begins in the whole.
SOURCE = np.dtype([(name, np.int64) for name in ("positions_at", "count", "merged", "base")])
# Key of a source that is merged.
_ENDED = np.iinfo(np.int64).max


@loop
def _next(text: Ints, depth: int, source: Record) -> tuple[int, int]:
    """(key, place) of the source's next place. The key is its first two tokens in one number, which decides most
    comparisons."""
    if source.merged >= source.count:
        return _ENDED, 0
    place = carray(ints_at(source.positions_at), source.count)[source.merged] + source.base
    second = np.int64(text[place - 1]) + 1 if depth > 1 else 0
    return np.int64(text[place]) << 32 | second, place  # type: ignore[return-value]


@loop
def _is_before(text: Ints, depth: int, first: int, second: int) -> bool:
    """Whether a place comes before another one, of a later text, that has the same key."""
    if text[first - 1] >= 0:
        for at in range(2, depth):
            token = text[first - at]
            if token != text[second - at]:
                return bool(token < text[second - at])
            if token < 0:
                break
    return True


@functools.partial(kept, nogil=True)
def merge_some(text: Ints, depth: int, sources: Records, out: Ints) -> None:
    """The next places of all sources, as many as `out` has room for. `text` is the concatenation of all."""
    count = sources.shape[0]
    keys: Longs = np.empty(count, np.int64)
    places: Longs = np.empty(count, np.int64)
    for source in range(count):
        keys[source], places[source] = _next(text, depth, sources[source])
    for at in range(out.shape[0]):
        best = 0
        for source in range(1, count):
            if keys[source] < keys[best] or (
                keys[source] == keys[best] != _ENDED and not _is_before(text, depth, places[best], places[source])
            ):
                best = source
        out[at] = places[best]
        sources[best].merged += 1
        keys[best], places[best] = _next(text, depth, sources[best])
