"""The suffix automaton: how it grows, and how its followers move. Knows addresses and ints; automaton.py has the
memory. Compiled into step.py.

A state stands for all contexts that have occurred at the same places: the longest has LEN tokens, each shorter one is
a suffix of it, down to one token more than LEN of its LINK has. The root, state 0, is the empty context. From a state,
a token leads to the state of the contexts with that token behind them.

    text  a b c a b x        "b" and "ab" end at the same places: one state, LEN 2, COUNT 2, LINK the root.
                             They were followed by c first, then by x: BEST_TOKEN c, BEST_COUNT 1.

Most states have one next token, kept in the state's own row. Further ones are entries in a hash table with chains,
which grows by one bucket at a time: the table is never rehashed at once, so no append takes long, entries never move,
and a cloned state finds its entries by NEXT_OF_SOURCE without a look-up.

Counts are exact for contexts of up to DEPTH tokens, and for those with one token behind them. An automaton of one text
also keeps the last place of each, and its writer the previous place of the longest one of up to LOOKED_UP tokens.
"""

from __future__ import annotations

import numpy as np

from services.proposer.fast.native import Ints, Longs, Table, fetch, ints, longs, loop, table_of

# Words of a state's row. 0 means none: no token leads to the root, no entry has number 0.
LEN, LINK, COUNT, BEST_COUNT, BEST_TOKEN, TOKEN, TARGET, OTHERS = range(8)
STATE_WORDS = 8
# Words of an entry.
SOURCE, LABEL, GOAL, NEXT_IN_BUCKET, NEXT_OF_SOURCE = range(5)
ENTRY_WORDS = 5
# Words of a bucket: its first entry, and where that leads, so that both can be prefetched at once.
FIRST, GOAL_OF_FIRST = range(2)
BUCKET_WORDS = 2
# So that few buckets have more than one entry.
BUCKETS_AN_ENTRY = 2
# An automaton's own words, 64 bits each. BUCKETS is between LOW, a power of two, and twice that. LASTS_AT 0: of many
# texts, so no places are kept.
(STATES_AT, ENTRIES_AT, BUCKETS_AT, LASTS_AT, STATES, ENTRIES, BUCKETS, LOW, TOKENS, STATES_ROOM, ENTRIES_ROOM,
 MAX_TOKENS, MAX_BYTES, DEPTH, LOOKED_UP) = range(15)  # fmt: skip
AUTOMATON_WORDS = 15
FIRST_BUCKETS = 16

# A follower's words. END: the state of all that it wrote; READER: it only reads. STATE and LENGTH: its context, the
# last LENGTH tokens that it read or wrote. BEFORE: the place behind the last earlier occurrence of the last
# BEFORE_LENGTH.
AUTOMATON, END, STATE, LENGTH, BEFORE, BEFORE_LENGTH = range(6)
FOLLOWER_WORDS = 6
READER = -1
# Results of writing a token: written; tables need room first; bounds are reached.
TAKES, LACKS, FULL = np.int64(0), np.int64(-1), np.int64(-2)

STATE_BYTES, ENTRY_BYTES, BUCKET_BYTES, LAST_BYTES = 4 * STATE_WORDS, 4 * ENTRY_WORDS, 4 * BUCKET_WORDS, 4
# Prefetch distance of buckets that will be opened.
_SOON = 4
_states, _entries, _buckets = map(table_of, (STATE_WORDS, ENTRY_WORDS, BUCKET_WORDS))
_MIX = np.uint64(0x9E3779B97F4A7C15)


@loop
def opened(address: int) -> tuple[Longs, Table, Table, Table]:
    """An automaton's words, states, entries and buckets."""
    words = longs(address)
    return words, _states(words[STATES_AT]), _entries(words[ENTRIES_AT]), _buckets(words[BUCKETS_AT])


@loop
def lasts_of(words: Longs) -> Ints:
    """The last place of each state's contexts. Not to be read where LASTS_AT is 0."""
    return ints(words[LASTS_AT])  # type: ignore[no-any-return]


@loop
def link_of(rows: Table, state: int) -> int:
    """Widened to 64 bits, as other states are: numba would compile each function for both widths."""
    return np.int64(rows[state, LINK])  # type: ignore[return-value]


# Transitions ------------------------------------------------------------------------------------------------


@loop
def bucket_of(words: Longs, state: int, token: int) -> int:
    low = np.uint64(words[LOW])
    mixed = np.uint64(state) << np.uint64(32) ^ np.uint64(token) & np.uint64(0xFFFFFFFF)
    mixed = (mixed ^ mixed >> np.uint64(29)) * _MIX >> np.uint64(32)
    bucket = mixed & (low + low - np.uint64(1))
    if bucket >= np.uint64(words[BUCKETS]):
        bucket &= low - np.uint64(1)
    return np.int64(bucket)  # type: ignore[return-value]


@loop
def _entry(words: Longs, entries: Table, buckets: Table, state: int, token: int) -> int:
    entry: int = buckets[bucket_of(words, state, token), FIRST]
    while entry and not (entries[entry, SOURCE] == state and entries[entry, LABEL] == token):
        entry = entries[entry, NEXT_IN_BUCKET]
    return entry


@loop
def target_of(words: Longs, rows: Table, entries: Table, buckets: Table, state: int, token: int) -> int:
    """Where the token leads from the state; 0: nowhere."""
    if rows[state, TOKEN] == token or not rows[state, OTHERS]:
        return np.int64(rows[state, TARGET] if rows[state, TOKEN] == token else 0)  # type: ignore[return-value]
    entry = _entry(words, entries, buckets, state, token)
    return np.int64(entries[entry, GOAL] if entry else 0)  # type: ignore[return-value]


@loop
def _lead(words: Longs, rows: Table, entries: Table, buckets: Table, state: int, token: int, target: int) -> None:
    """A transition that wasn't there."""
    if not rows[state, TARGET]:
        rows[state, TOKEN], rows[state, TARGET] = token, target
        return
    entry = words[ENTRIES]
    words[ENTRIES] += 1
    bucket = bucket_of(words, state, token)
    entries[entry, SOURCE], entries[entry, LABEL], entries[entry, GOAL] = state, token, target
    entries[entry, NEXT_IN_BUCKET], entries[entry, NEXT_OF_SOURCE] = buckets[bucket, FIRST], rows[state, OTHERS]
    buckets[bucket, FIRST], buckets[bucket, GOAL_OF_FIRST], rows[state, OTHERS] = entry, target, entry
    while BUCKETS_AN_ENTRY * words[ENTRIES] > words[BUCKETS]:
        _open_bucket(words, entries, buckets)


@loop
def _open_bucket(words: Longs, entries: Table, buckets: Table) -> None:
    """One more bucket; its entries are moved from the one with the same lower bits."""
    opened = words[BUCKETS]
    old = opened - words[LOW]
    words[BUCKETS] += 1
    if words[BUCKETS] == 2 * words[LOW]:
        words[LOW] *= 2
    entry = buckets[old, FIRST]
    buckets[old, FIRST] = buckets[old, GOAL_OF_FIRST] = 0
    while entry:
        after = entries[entry, NEXT_IN_BUCKET]
        bucket = bucket_of(words, np.int64(entries[entry, SOURCE]), entries[entry, LABEL])
        entries[entry, NEXT_IN_BUCKET] = buckets[bucket, FIRST]
        buckets[bucket, FIRST], buckets[bucket, GOAL_OF_FIRST] = entry, entries[entry, GOAL]
        entry = after
    # For one of the next calls.
    fetch(words[ENTRIES_AT] + ENTRY_BYTES * buckets[old + 1 + _SOON, FIRST])


@loop
def _redirect(
    words: Longs, rows: Table, entries: Table, buckets: Table, state: int, token: int, q: int, to: int
) -> bool:  # fmt: skip
    """The transition from the state to q leads to `to` now; False: it doesn't lead to q."""
    if rows[state, TOKEN] == token:
        if rows[state, TARGET] != q:
            return False
        rows[state, TARGET] = to
        return True
    bucket = bucket_of(words, state, token)
    entry = _entry(words, entries, buckets, state, token)
    if entries[entry, GOAL] != q:
        return False
    entries[entry, GOAL] = to
    if buckets[bucket, FIRST] == entry:
        buckets[bucket, GOAL_OF_FIRST] = to
    return True


# Growing ----------------------------------------------------------------------------------------------------


@loop
def _others(rows: Table, entries: Table, state: int) -> int:
    count, entry = 0, rows[state, OTHERS]
    while entry:
        count += 1
        entry = entries[entry, NEXT_OF_SOURCE]
    return count


@loop
def _bytes(words: Longs, states: int, entries: int, buckets: int) -> int:
    of_states = states * (STATE_BYTES + LAST_BYTES if words[LASTS_AT] else STATE_BYTES)
    return of_states + entries * ENTRY_BYTES + buckets * BUCKET_BYTES


@loop
def held(words: Longs) -> int:
    return _bytes(words, words[STATES], words[ENTRIES], words[BUCKETS])  # type: ignore[no-any-return]


@loop
def _room(words: Longs, added: int) -> int:
    """For one more token with so many entries: TAKES, LACKS or FULL."""
    states, entries = words[STATES] + 2, words[ENTRIES] + added
    size = _bytes(words, states, entries, max(words[BUCKETS], BUCKETS_AN_ENTRY * entries))
    if words[TOKENS] >= words[MAX_TOKENS] or size > words[MAX_BYTES]:
        return FULL  # type: ignore[return-value]
    return TAKES if states <= words[STATES_ROOM] and entries <= words[ENTRIES_ROOM] else LACKS  # type: ignore[return-value]


@loop
def _grow(words: Longs, rows: Table, entries: Table, buckets: Table, lasts: Ints, end: int, token: int) -> int:
    """The state of the text at `end` with the token behind it; LACKS or FULL: nothing has changed.

    missing    contexts of the text, longest first, that were never followed by the token
    state, q   the longest that was, and where that leads; -1: none was
    """
    missing, added, state, q = 0, 1, end, 0
    while state >= 0:
        q = target_of(words, rows, entries, buckets, state, token)
        if q:
            break
        missing += 1
        added += rows[state, TARGET] != 0
        state = link_of(rows, state)
    splits = state >= 0 and rows[q, LEN] != rows[state, LEN] + 1
    if splits:
        added += _others(rows, entries, q)
    room = _room(words, added)
    if room < 0:
        return room  # type: ignore[no-any-return]
    words[TOKENS] += 1
    new = 0
    if missing:
        new = words[STATES]
        words[STATES] += 1
        rows[new, LEN] = rows[end, LEN] + 1
        for _ in range(missing):
            _lead(words, rows, entries, buckets, end, token, new)
            end = link_of(rows, end)
    if splits:
        q = _clone(words, rows, entries, buckets, lasts, state, token, q)
    if not missing:
        return q
    rows[new, LINK] = q
    return new


@loop
def _clone(
    words: Longs, rows: Table, entries: Table, buckets: Table, lasts: Ints, state: int, token: int, q: int
) -> int:  # fmt: skip
    """q's shorter contexts, those of `state` with the token, now occur where its longer ones don't: they get a state of
    their own, with a copy of q's counts and transitions. Followers at q with a longer context stay."""
    clone: int = words[STATES]
    words[STATES] += 1
    for word in range(STATE_WORDS):
        rows[clone, word] = rows[q, word]
    rows[clone, LEN], rows[clone, OTHERS] = rows[state, LEN] + 1, 0
    if words[LASTS_AT]:
        lasts[clone] = lasts[q]
    entry, first = rows[q, OTHERS], words[ENTRIES]
    while entry:
        _lead(words, rows, entries, buckets, clone, entries[entry, LABEL], np.int64(entries[entry, GOAL]))
        entry = entries[entry, NEXT_OF_SOURCE]
    # In the same order as q's.
    end = words[ENTRIES]
    for copied in range(first, end):
        entries[copied, NEXT_OF_SOURCE] = copied + 1 if copied + 1 < end else 0
    rows[clone, OTHERS] = first if end > first else 0
    rows[q, LINK] = clone
    while state >= 0 and _redirect(words, rows, entries, buckets, state, token, q, clone):
        state = link_of(rows, state)
    return clone


@loop
def shortened(rows: Table, state: int, length: int) -> int:
    """The state of the context of that length: another one after the state was cloned, or when the context is cut."""
    while state and rows[rows[state, LINK], LEN] >= length:
        state = link_of(rows, state)
    return state


@loop
def _occurs(words: Longs, rows: Table, lasts: Ints, follower: Longs, state: int) -> None:
    """The state's contexts occur once more, here."""
    if words[LASTS_AT]:
        if rows[state, COUNT] and not follower[BEFORE_LENGTH] and rows[rows[state, LINK], LEN] < words[LOOKED_UP]:
            follower[BEFORE], follower[BEFORE_LENGTH] = lasts[state], min(rows[state, LEN], words[LOOKED_UP])
        lasts[state] = words[TOKENS]
    rows[state, COUNT] += 1


@loop
def _overtakes(rows: Table, state: int, count: int, token: int) -> bool:
    """Of tokens that followed equally often, twice or more, the last one is the best: recent text is likelier to
    repeat. Not where the first token that ever followed is one occurrence behind."""
    return bool(rows[state, TOKEN] == token or rows[rows[state, TARGET], COUNT] != count - 1)


@loop
def _count(
    words: Longs, rows: Table, lasts: Ints, follower: Longs, source: int, length: int, target: int, token: int
) -> None:  # fmt: skip
    """The token has followed the context (source, length), and all suffixes of it.

    Each suffix of the context leads to the suffix of the target's that is one token longer. Both chains of links go
    through all lengths, so lengths tell which target is whose, and nothing is looked up:

        sources    5 4 | 3 | 2 1
        targets    6 5 | 4   3 | 2 | 1
    """
    follower[BEFORE_LENGTH] = 0
    _occurs(words, rows, lasts, follower, target)
    while source:
        while rows[rows[target, LINK], LEN] > length:
            target = link_of(rows, target)
            _occurs(words, rows, lasts, follower, target)
        count, best = rows[target, COUNT], rows[source, BEST_COUNT]
        if count > best or (count == best > 1 and _overtakes(rows, source, count, token)):
            rows[source, BEST_COUNT], rows[source, BEST_TOKEN] = count, token
        source = link_of(rows, source)
        length = rows[source, LEN]
    target = link_of(rows, target)
    while target:
        _occurs(words, rows, lasts, follower, target)
        target = link_of(rows, target)


@loop
def write(words: Longs, rows: Table, entries: Table, buckets: Table, lasts: Ints, follower: Longs, token: int) -> int:
    """TAKES, or LACKS or FULL: nothing has changed then."""
    end = _grow(words, rows, entries, buckets, lasts, follower[END], token)
    if end < 0:
        return end  # type: ignore[no-any-return]
    length = follower[LENGTH]
    source, target = shortened(rows, follower[STATE], length), end
    # Usually the state of the whole text is also that of its last tokens.
    if source != follower[END]:
        target = target_of(words, rows, entries, buckets, source, token)
    _count(words, rows, lasts, follower, source, length, target, token)
    length = min(length + 1, words[DEPTH])
    follower[END], follower[STATE], follower[LENGTH] = end, shortened(rows, target, length), length
    return TAKES  # type: ignore[return-value]


@loop
def read(words: Longs, rows: Table, entries: Table, buckets: Table, follower: Longs, token: int) -> None:
    """Moves to the longest suffix of the context that the token has followed, and the token."""
    length = follower[LENGTH]
    state = shortened(rows, follower[STATE], length)
    target = target_of(words, rows, entries, buckets, state, token)
    while state and not target:
        state = link_of(rows, state)
        length = rows[state, LEN]
        target = target_of(words, rows, entries, buckets, state, token)
    length = min(length + 1, words[DEPTH]) if target else 0
    follower[STATE], follower[LENGTH] = shortened(rows, target, length), length
