"""The suffix automaton's arithmetic, compiled by numba. All of it is in this file: compiled code is kept on disk under
the digest of the file (kernels/cpu_cache.py). Knows addresses and ints; whose they are is automaton.py's.

A state stands for all contexts that have occurred at the same places: the longest has LEN tokens, each shorter one is
a suffix of it, down to one token more than LEN of its LINK has. The root, state 0, is the empty context. From a state,
a token leads to the state of the contexts with that token behind them.

    text  a b c a b x        "b" and "ab" end at the same places: one state, LEN 2, COUNT 2, LINK the root.
                             They were followed by c first, then by x: BEST_TOKEN c, BEST_COUNT 1.

Most states know one next token: it stands in the state's own row. The others are entries in a hash table of chains
that grows by one bucket at a time: nothing is ever hashed anew at once, so no append takes long, entries stay where
they are, and a state that is cloned finds its own by NEXT_OF_SOURCE without looking anything up.

Counts are exact for contexts of up to DEPTH tokens, and for those with one token behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic

from kernels.cpu_cache import kept_on_disk

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Words of a state's row. What is 0 in fresh memory means "none": no token leads to the root, no entry is number 0.
LEN, LINK, COUNT, BEST_COUNT, BEST_TOKEN, TOKEN, TARGET, OTHERS = range(8)
STATE_WORDS = 8
# Words of an entry.
SOURCE, LABEL, GOAL, NEXT_IN_BUCKET, NEXT_OF_SOURCE = range(5)
ENTRY_WORDS = 5
# An automaton's own words, 64 bits each. BUCKETS lies between LOW, a power of two, and twice that.
(STATES_AT, ENTRIES_AT, BUCKETS_AT, STATES, ENTRIES, BUCKETS, LOW, TOKENS, ROOM, MAX_BYTES, DEPTH) = range(11)
AUTOMATON_WORDS = 11
FIRST_BUCKETS = 16

# A follower's words. END: the state of all it wrote, READER where it doesn't write. STATE and LENGTH: its context,
# the last LENGTH tokens that it saw.
AUTOMATON, END, STATE, LENGTH = range(4)
FOLLOWER_WORDS = 4
READER = -1
# What is told of a follower's turn: tokens taken (fewer than given: full), length of the draft and of its context.
TAKEN, DRAFTED, MATCHED = range(3)
TOLD_WORDS = 3

STATE_BYTES, ENTRY_BYTES, BUCKET_BYTES = 4 * STATE_WORDS, 4 * ENTRY_WORDS, 4
# A score this close to the best may be the best: the bound isn't rounded as the sum is.
_NEARLY = 1 - 1e-9
_MIX = np.uint64(0x9E3779B97F4A7C15)


def _loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """The part of `run`: compiled into it, so it is kept with it."""
    return numba.njit(error_model="numpy")(function)


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    with kept_on_disk(function) as cache:
        return numba.njit(error_model="numpy", cache=cache)(function)


def _pointer_to(ctype: Any) -> Any:
    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(ctype)(types.int64), generate  # type: ignore[no-untyped-call]

    return pointer


# numba's name for an array at an address; its own types don't tell.
carray: Any = numba.carray  # type: ignore[attr-defined]
_ints_at, _longs_at = _pointer_to(types.int32), _pointer_to(types.int64)


# Transitions ------------------------------------------------------------------------------------------------


@_loop
def _bucket(words: Longs, state: int, token: int) -> int:
    low = np.uint64(words[LOW])
    mixed = np.uint64(state) << np.uint64(32) ^ np.uint64(token) & np.uint64(0xFFFFFFFF)
    mixed = (mixed ^ mixed >> np.uint64(29)) * _MIX >> np.uint64(32)
    bucket = mixed & (low + low - np.uint64(1))
    if bucket >= np.uint64(words[BUCKETS]):
        bucket &= low - np.uint64(1)
    return np.int64(bucket)  # type: ignore[return-value]


@_loop
def _entry(words: Longs, entries: Ints, buckets: Ints, state: int, token: int) -> int:
    entry: int = buckets[_bucket(words, state, token)]
    while entry and not (entries[entry, SOURCE] == state and entries[entry, LABEL] == token):
        entry = entries[entry, NEXT_IN_BUCKET]
    return entry


@_loop
def _target(words: Longs, rows: Ints, entries: Ints, buckets: Ints, state: int, token: int) -> int:
    """Where the token leads from the state; 0: nowhere."""
    if rows[state, TOKEN] == token or not rows[state, OTHERS]:
        return rows[state, TARGET] if rows[state, TOKEN] == token else 0
    entry = _entry(words, entries, buckets, state, token)
    return entries[entry, GOAL] if entry else 0


@_loop
def _lead(words: Longs, rows: Ints, entries: Ints, buckets: Ints, state: int, token: int, target: int) -> None:
    """A transition that wasn't there."""
    if not rows[state, TARGET]:
        rows[state, TOKEN], rows[state, TARGET] = token, target
        return
    entry = words[ENTRIES]
    words[ENTRIES] += 1
    bucket = _bucket(words, state, token)
    entries[entry, SOURCE], entries[entry, LABEL], entries[entry, GOAL] = state, token, target
    entries[entry, NEXT_IN_BUCKET], entries[entry, NEXT_OF_SOURCE] = buckets[bucket], rows[state, OTHERS]
    buckets[bucket] = rows[state, OTHERS] = entry
    if words[ENTRIES] > words[BUCKETS]:
        _open_bucket(words, entries, buckets)


@_loop
def _open_bucket(words: Longs, entries: Ints, buckets: Ints) -> None:
    """One more bucket; its entries are among those of the one with the same lower bits."""
    opened = words[BUCKETS]
    old = opened - words[LOW]
    words[BUCKETS] += 1
    if words[BUCKETS] == 2 * words[LOW]:
        words[LOW] *= 2
    entry = buckets[old]
    buckets[old] = 0
    while entry:
        after = entries[entry, NEXT_IN_BUCKET]
        bucket = _bucket(words, entries[entry, SOURCE], entries[entry, LABEL])
        entries[entry, NEXT_IN_BUCKET] = buckets[bucket]
        buckets[bucket] = entry
        entry = after


@_loop
def _redirect(words: Longs, rows: Ints, entries: Ints, buckets: Ints, state: int, token: int, q: int, to: int) -> bool:
    """What leads from the state to q leads elsewhere now; False: it doesn't lead to q."""
    if rows[state, TOKEN] == token:
        if rows[state, TARGET] != q:
            return False
        rows[state, TARGET] = to
        return True
    entry = _entry(words, entries, buckets, state, token)
    if entries[entry, GOAL] != q:
        return False
    entries[entry, GOAL] = to
    return True


# Growing ----------------------------------------------------------------------------------------------------


@_loop
def _others(rows: Ints, entries: Ints, state: int) -> int:
    count, entry = 0, rows[state, OTHERS]
    while entry:
        count += 1
        entry = entries[entry, NEXT_OF_SOURCE]
    return count


@_loop
def _has_room(words: Longs, entries: int) -> bool:
    """For one more token with so many entries. Not only bytes: memory is laid out for ROOM tokens."""
    states = words[STATES] + 2
    buckets = max(words[BUCKETS], words[ENTRIES] + entries)
    entries += words[ENTRIES]
    size = states * STATE_BYTES + entries * ENTRY_BYTES + buckets * BUCKET_BYTES
    return bool(words[TOKENS] < words[ROOM] and size <= words[MAX_BYTES])


@_loop
def _grow(words: Longs, rows: Ints, entries: Ints, buckets: Ints, end: int, token: int) -> int:
    """The state of the text at `end` with the token behind it; -1: full, and nothing has changed.

        missing    contexts of the text, longest first, that were never followed by the token
        state, q   the longest that was, and where that leads; -1: none was
    """
    missing, added, state, q = 0, 1, end, 0
    while state >= 0:
        q = _target(words, rows, entries, buckets, state, token)
        if q:
            break
        missing += 1
        added += rows[state, TARGET] != 0
        state = rows[state, LINK]
    splits = state >= 0 and rows[q, LEN] != rows[state, LEN] + 1
    if splits:
        added += _others(rows, entries, q)
    if not _has_room(words, added):
        return -1
    words[TOKENS] += 1
    new = 0
    if missing:
        new = words[STATES]
        words[STATES] += 1
        rows[new, LEN] = rows[end, LEN] + 1
        for _ in range(missing):
            _lead(words, rows, entries, buckets, end, token, new)
            end = rows[end, LINK]
    if splits:
        q = _clone(words, rows, entries, buckets, state, token, q)
    if not missing:
        return q
    rows[new, LINK] = q
    return new


@_loop
def _clone(words: Longs, rows: Ints, entries: Ints, buckets: Ints, state: int, token: int, q: int) -> int:
    """q's shorter contexts, those of `state` with the token, have occurred where its longer ones have not: they get a
    state of their own, with all that was known of them. Whoever stands at q with a longer context stays."""
    clone: int = words[STATES]
    words[STATES] += 1
    for word in range(STATE_WORDS):
        rows[clone, word] = rows[q, word]
    rows[clone, LEN], rows[clone, OTHERS] = rows[state, LEN] + 1, 0
    entry = rows[q, OTHERS]
    while entry:
        _lead(words, rows, entries, buckets, clone, entries[entry, LABEL], entries[entry, GOAL])
        entry = entries[entry, NEXT_OF_SOURCE]
    rows[q, LINK] = clone
    while state >= 0 and _redirect(words, rows, entries, buckets, state, token, q, clone):
        state = rows[state, LINK]
    return clone


@_loop
def _shortened(rows: Ints, state: int, length: int) -> int:
    """The state of a state's context of that length: it has moved when others cloned the state, or is cut shorter."""
    while state and rows[rows[state, LINK], LEN] >= length:
        state = rows[state, LINK]
    return state


@_loop
def _count(rows: Ints, source: int, length: int, target: int, token: int) -> None:
    """The token has followed the context (source, length), and all suffixes of it.

    Each suffix of the context leads to the suffix of the target's that is one token longer. Both chains of links go
    through all lengths, so lengths tell which target is whose, and nothing is looked up:

        sources    5 4 | 3 | 2 1
        targets    6 5 | 4   3 | 2 | 1
    """
    rows[target, COUNT] += 1
    while source:
        while rows[rows[target, LINK], LEN] > length:
            target = rows[target, LINK]
            rows[target, COUNT] += 1
        if rows[target, COUNT] > rows[source, BEST_COUNT]:
            rows[source, BEST_COUNT], rows[source, BEST_TOKEN] = rows[target, COUNT], token
        source = rows[source, LINK]
        length = rows[source, LEN]
    target = rows[target, LINK]
    while target:
        rows[target, COUNT] += 1
        target = rows[target, LINK]


@_loop
def _write(words: Longs, rows: Ints, entries: Ints, buckets: Ints, follower: Longs, token: int) -> bool:
    end = _grow(words, rows, entries, buckets, follower[END], token)
    if end < 0:
        return False
    length = follower[LENGTH]
    source = _shortened(rows, follower[STATE], length)
    target = _target(words, rows, entries, buckets, source, token)
    _count(rows, source, length, target, token)
    length = min(length + 1, words[DEPTH])
    follower[END], follower[STATE], follower[LENGTH] = end, _shortened(rows, target, length), length
    return True


@_loop
def _read(words: Longs, rows: Ints, entries: Ints, buckets: Ints, follower: Longs, token: int) -> None:
    """The longest suffix of the old context that the token has followed, and the token."""
    length = follower[LENGTH]
    state = _shortened(rows, follower[STATE], length)
    target = _target(words, rows, entries, buckets, state, token)
    while state and not target:
        state = rows[state, LINK]
        length = rows[state, LEN]
        target = _target(words, rows, entries, buckets, state, token)
    length = min(length + 1, words[DEPTH]) if target else 0
    follower[STATE], follower[LENGTH] = _shortened(rows, target, length), length


# Guessing ---------------------------------------------------------------------------------------------------


@_loop
def _walk(
    words: Longs, rows: Ints, entries: Ints, buckets: Ints, state: int, length: int, budget: int, least: float,
    enough: float, draft: Ints, keeps: bool,
) -> tuple[int, float]:  # fmt: skip
    """(tokens, score) of the most frequent tokens behind the context, as long as their probability is at least
    `least`, and as long as the score may still become `enough`. Beyond DEPTH the context is its own last DEPTH
    tokens."""
    drafted, score, prob = 0, 0.0, 1.0
    while drafted < budget and rows[state, BEST_COUNT]:
        prob *= rows[state, BEST_COUNT] / rows[state, COUNT]
        if prob < least or score + prob * (budget - drafted) < enough:
            break
        token = rows[state, BEST_TOKEN]
        if keeps:
            draft[drafted] = token
        drafted += 1
        score += prob
        state = _target(words, rows, entries, buckets, state, token)
        if length == words[DEPTH]:
            state = _shortened(rows, state, length)
        else:
            length += 1
    return drafted, score


@_loop
def _guess(
    words: Longs, rows: Ints, entries: Ints, buckets: Ints, follower: Longs, longest: int, factor: float,
    offset: float, least: float, draft: Ints, told: Longs,
) -> float:  # fmt: skip
    """The best draft of all contexts that the follower's ends with.

    Contexts of one state have been followed by the same tokens as often: the longest of them has the largest budget,
    and so the best score. That leaves one context a state. No draft's score is above its length times its first
    token's probability, and budgets shrink with the context: that bounds what has to be looked at.
    """
    length = follower[LENGTH]
    state = _shortened(rows, follower[STATE], length)
    follower[STATE] = state
    best_state, best_budget, best = 0, 0, 0.0
    while state:
        budget = min(longest, int(length * factor + offset + 1e-6))
        if budget <= best:
            break
        first = rows[state, BEST_COUNT] / rows[state, COUNT]
        if first >= least and first * budget > best * _NEARLY:
            enough = best * _NEARLY
            _, score = _walk(words, rows, entries, buckets, state, length, budget, least, enough, draft, False)
            if score > best:
                best, best_state, best_budget = score, state, budget
                told[MATCHED] = length
        state = rows[state, LINK]
        length = rows[state, LEN]
    if best_state:
        told[DRAFTED], _ = _walk(
            words, rows, entries, buckets, best_state, told[MATCHED], best_budget, least, 0.0, draft, True
        )
    return best


# The one call -----------------------------------------------------------------------------------------------


@_kept
def run(
    followers: Longs, turns: Longs, begins: Longs, tokens: Ints, factor: float, offset: float, least: float,
    drafts: Ints, told: Longs, scores: Floats,
) -> None:  # fmt: skip
    """One turn after the other: a follower takes its tokens, then guesses up to so many. `turns` are (follower,
    longest draft), and tokens[begins[i] : begins[i + 1]] are those of turn i."""
    for turn in range(turns.shape[0]):
        follower = followers[turns[turn, 0]]
        words = carray(_longs_at(follower[AUTOMATON]), AUTOMATON_WORDS)
        room = words[ROOM]
        rows = carray(_ints_at(words[STATES_AT]), (2 * room + 2, STATE_WORDS))
        entries = carray(_ints_at(words[ENTRIES_AT]), (3 * room + 2, ENTRY_WORDS))
        buckets = carray(_ints_at(words[BUCKETS_AT]), 3 * room + FIRST_BUCKETS + 2)
        told[turn, TAKEN] = begins[turn + 1] - begins[turn]
        told[turn, DRAFTED] = told[turn, MATCHED] = 0
        for at in range(begins[turn], begins[turn + 1]):
            if follower[END] == READER:
                _read(words, rows, entries, buckets, follower, tokens[at])
            elif not _write(words, rows, entries, buckets, follower, tokens[at]):
                told[turn, TAKEN] = at - begins[turn]
                break
        scores[turn] = 0.0
        if turns[turn, 1] > 0:
            scores[turn] = _guess(
                words, rows, entries, buckets, follower, turns[turn, 1], factor, offset, least, drafts[turn], told[turn]
            )  # fmt: skip
