"""The suffix automaton of plain/automaton.py in tables of records: how it grows, and how its followers move.

Most states have one next token, kept in the state's own record. Further ones are entries in a hash table with chains,
which grows by one bucket at a time: the table is never rehashed at once, so no append takes long, entries never move,
and a split state finds its entries by `next_of_source` without a look-up.

An automaton of one text also keeps the last place of each context, and its writer the previous place of the longest
one of up to `looked_up` tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.proposer.fast.automaton.records import (
    BUCKET_BYTES,
    BUCKETS_AN_ENTRY,
    ENTRY,
    LAST_BYTES,
    STATE,
    automaton_at,
    entry_at,
    state_at,
)
from services.proposer.native import Ints, Record, Records, carray, ints_at, loop

# Results of writing a token: written; tables need room first; bounds are reached.
WRITTEN, NEEDS_ROOM, FULL = np.int64(0), np.int64(-1), np.int64(-2)
STATE_BYTES, ENTRY_BYTES = STATE.itemsize, ENTRY.itemsize
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Tables(NamedTuple):
    # One: functions can return arrays of records, but no record.
    automata: Records
    states: Records
    entries: Records
    buckets: Ints
    lasts: Ints


@loop
def opened(address: int) -> Tables:
    automata = carray(automaton_at(address), 1)
    automaton = automata[0]
    return Tables(
        automata,
        carray(state_at(automaton.states_at), automaton.states_room),
        carray(entry_at(automaton.entries_at), automaton.entries_room),
        carray(ints_at(automaton.buckets_at), automaton.buckets_room),
        carray(ints_at(automaton.lasts_at), automaton.states_room if automaton.lasts_at else 0),
    )


@loop
def link_of(tables: Tables, state: int) -> int:
    """Widened to 64 bits, as other states are: numba would compile each function for both widths."""
    return np.int64(tables.states[state].link)  # type: ignore[return-value]


# Transitions ------------------------------------------------------------------------------------------------


@loop
def bucket_of(automaton: Record, state: int, token: int) -> int:
    low = np.uint64(automaton.low)
    mixed = np.uint64(state) << np.uint64(32) ^ np.uint64(token) & np.uint64(0xFFFFFFFF)
    mixed = (mixed ^ mixed >> np.uint64(29)) * _MIX >> np.uint64(32)
    bucket = mixed & (low + low - np.uint64(1))
    if bucket >= np.uint64(automaton.buckets):
        bucket &= low - np.uint64(1)
    return np.int64(bucket)  # type: ignore[return-value]


@loop
def _entry(tables: Tables, state: int, token: int) -> int:
    entry = np.int64(tables.buckets[bucket_of(tables.automata[0], state, token)])
    while entry and not (tables.entries[entry].source == state and tables.entries[entry].token == token):
        entry = np.int64(tables.entries[entry].next_in_bucket)
    return entry  # type: ignore[return-value]


@loop
def target_of(tables: Tables, state: int, token: int) -> int:
    """Where the token leads from the state; 0: nowhere."""
    row = tables.states[state]
    if row.token == token or not row.others:
        return np.int64(row.target if row.token == token else 0)  # type: ignore[return-value]
    return np.int64(tables.entries[_entry(tables, state, token)].target)  # type: ignore[return-value]


@loop
def _lead(tables: Tables, state: int, token: int, target: int) -> None:
    """A transition that wasn't there."""
    automaton, row = tables.automata[0], tables.states[state]
    if not row.target:
        row.token, row.target = token, target
        return
    number = automaton.entries
    automaton.entries += 1
    bucket, entry = bucket_of(automaton, state, token), tables.entries[number]
    entry.source, entry.token, entry.target = state, token, target
    entry.next_in_bucket, entry.next_of_source = tables.buckets[bucket], row.others
    tables.buckets[bucket] = row.others = number
    while BUCKETS_AN_ENTRY * automaton.entries > automaton.buckets:
        _open_bucket(tables)


@loop
def _open_bucket(tables: Tables) -> None:
    """One more bucket; its entries are moved from the one with the same lower bits."""
    automaton = tables.automata[0]
    old = automaton.buckets - automaton.low
    automaton.buckets += 1
    if automaton.buckets == 2 * automaton.low:
        automaton.low *= 2
    number = np.int64(tables.buckets[old])
    tables.buckets[old] = 0
    while number:
        entry = tables.entries[number]
        after = np.int64(entry.next_in_bucket)
        bucket = bucket_of(automaton, np.int64(entry.source), np.int64(entry.token))
        entry.next_in_bucket = tables.buckets[bucket]
        tables.buckets[bucket] = number
        number = after


@loop
def _redirect(tables: Tables, state: int, token: int, before: int, to: int) -> bool:
    """The token leads from the state to `to` now; False: it didn't lead to `before`."""
    row = tables.states[state]
    if row.token == token:
        if row.target != before:
            return False
        row.target = to
        return True
    entry = tables.entries[_entry(tables, state, token)]
    if entry.target != before:
        return False
    entry.target = to
    return True


# Growing ----------------------------------------------------------------------------------------------------


@loop
def _others(tables: Tables, state: int) -> int:
    count, entry = 0, np.int64(tables.states[state].others)
    while entry:
        count += 1
        entry = np.int64(tables.entries[entry].next_of_source)
    return count


@loop
def _bytes(automaton: Record, states: int, entries: int, buckets: int) -> int:
    of_states = states * (STATE_BYTES + (LAST_BYTES if automaton.lasts_at else 0))
    return of_states + entries * ENTRY_BYTES + buckets * BUCKET_BYTES


@loop
def _room(automaton: Record, added: int) -> int:
    """Whether one more token with this number of entries can be added: WRITTEN, NEEDS_ROOM or FULL."""
    states, entries = automaton.states + 2, automaton.entries + added
    size = _bytes(automaton, states, entries, max(automaton.buckets, BUCKETS_AN_ENTRY * entries))
    if automaton.tokens >= automaton.max_tokens or size > automaton.max_bytes:
        return FULL  # type: ignore[return-value]
    return WRITTEN if states <= automaton.states_room and entries <= automaton.entries_room else NEEDS_ROOM  # type: ignore[return-value]


@loop
def _grow(tables: Tables, end: int, token: int) -> int:
    """The state of the text that ends at `end` with the token behind it; NEEDS_ROOM or FULL: nothing has changed.

    missing          contexts of the text, longest first, that were never followed by the token
    state, suffix    the longest that was, and where that leads; -1: none was
    """
    automaton, states = tables.automata[0], tables.states
    missing, added, state, suffix = 0, 1, end, end
    while state >= 0:
        suffix = target_of(tables, state, token)
        if suffix:
            break
        missing += 1
        added += states[state].target != 0
        state = link_of(tables, state)
    splits = state >= 0 and states[suffix].length != states[state].length + 1
    if splits:
        added += _others(tables, suffix)
    room = _room(automaton, added)
    if room < 0:
        return room  # type: ignore[no-any-return]
    automaton.tokens += 1
    new: int = automaton.states
    if missing:
        automaton.states += 1
        states[new].length = states[end].length + 1
        for _ in range(missing):
            _lead(tables, end, token, new)
            end = link_of(tables, end)
    if splits:
        suffix = _split(tables, state, token, suffix)
    if not missing:
        return suffix
    states[new].link = suffix
    return new


@loop
def _split(tables: Tables, state: int, token: int, longer: int) -> int:
    """The shorter contexts of `longer`, those of `state` with the token, now occur where its longer ones don't: they
    get a state of their own. Followers at `longer` with a longer context stay."""
    automaton, states, entries = tables.automata[0], tables.states, tables.entries
    shorter = np.int64(automaton.states)
    automaton.states += 1
    states[shorter] = states[longer]
    states[shorter].length, states[shorter].others = states[state].length + 1, 0
    if automaton.lasts_at:
        tables.lasts[shorter] = tables.lasts[longer]
    entry, first = np.int64(states[longer].others), automaton.entries
    while entry:
        _lead(tables, shorter, np.int64(entries[entry].token), np.int64(entries[entry].target))
        entry = np.int64(entries[entry].next_of_source)
    # In the same order.
    end = automaton.entries
    for copied in range(first, end):
        entries[copied].next_of_source = copied + 1 if copied + 1 < end else 0
    states[shorter].others = first if end > first else 0
    states[longer].link = shorter
    while state >= 0 and _redirect(tables, state, token, longer, shorter):
        state = link_of(tables, state)
    return shorter  # type: ignore[return-value]


@loop
def shortened(tables: Tables, state: int, length: int) -> int:
    """The state of the context of that length: another one after a split, or when the context is cut."""
    states = tables.states
    while state and states[states[state].link].length >= length:
        state = link_of(tables, state)
    return state


@loop
def _occurs(tables: Tables, follower: Record, state: int) -> None:
    """The state's contexts occur once more, here."""
    row, looked_up = tables.states[state], tables.automata[0].looked_up
    if tables.automata[0].lasts_at:
        if row.count and not follower.before_length and tables.states[row.link].length < looked_up:
            follower.before, follower.before_length = tables.lasts[state], min(row.length, looked_up)
        tables.lasts[state] = tables.automata[0].tokens
    row.count += 1


@loop
def _overtakes(tables: Tables, state: int, count: int, token: int) -> bool:
    """Of tokens that followed equally often, twice or more, the last one is the best: recent text is likelier to
    repeat. Not where the first token that ever followed is one occurrence behind."""
    row = tables.states[state]
    if count != row.best_count or count == 1:
        return bool(count > row.best_count)
    return bool(row.token == token or tables.states[row.target].count != count - 1)


@loop
def _count(tables: Tables, follower: Record, source: int, length: int, target: int, token: int) -> None:
    """The token has followed the context (source, length), and all suffixes of it. plain/automaton.py has the
    picture."""
    states = tables.states
    follower.before_length = 0
    _occurs(tables, follower, target)
    while source:
        while states[states[target].link].length > length:
            target = link_of(tables, target)
            _occurs(tables, follower, target)
        count = np.int64(states[target].count)
        if _overtakes(tables, source, count, token):
            states[source].best_count, states[source].best = count, token
        source = link_of(tables, source)
        length = states[source].length
    target = link_of(tables, target)
    while target:
        _occurs(tables, follower, target)
        target = link_of(tables, target)


@loop
def write(tables: Tables, writer: Record, token: int) -> int:
    """WRITTEN, or NEEDS_ROOM or FULL: nothing has changed then."""
    end = _grow(tables, writer.end, token)
    if end < 0:
        return end  # type: ignore[no-any-return]
    length = writer.length
    source, target = shortened(tables, writer.state, length), end
    # Usually the state of the whole text is also that of its last tokens.
    if source != writer.end:
        target = target_of(tables, source, token)
    _count(tables, writer, source, length, target, token)
    length = min(length + 1, tables.automata[0].depth)
    writer.end, writer.state, writer.length = end, shortened(tables, target, length), length
    return WRITTEN  # type: ignore[return-value]


@loop
def read(tables: Tables, reader: Record, token: int) -> None:
    """Moves to the longest suffix of the context that the token has followed, and the token."""
    length = reader.length
    state = shortened(tables, reader.state, length)
    target = target_of(tables, state, token)
    while state and not target:
        state = link_of(tables, state)
        length = np.int64(tables.states[state].length)
        target = target_of(tables, state, token)
    length = min(length + 1, tables.automata[0].depth) if target else np.int64(0)
    reader.state, reader.length = shortened(tables, target, length), length


@loop
def read_all(reader: Record, text: Ints, begin: int) -> None:
    tables = opened(reader.automaton_at)
    for at in range(begin, text.size):
        read(tables, reader, np.int64(text[at]))
