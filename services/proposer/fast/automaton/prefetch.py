"""Prefetches the rows that a text's new tokens lead to. Compiled into step.py.

The tables of many texts are far larger than the processor's caches, and each miss costs as much as a hundred additions.
A scout runs ahead of a text's writer by some tokens, from the same contexts, and reads only rows that were prefetched
for it earlier: meanwhile other texts' scouts move, or the writer writes. Nothing depends on what it finds.
"""

from __future__ import annotations

from services.proposer.fast.automaton.loops import (
    BUCKET_BYTES,
    BUCKETS_AT,
    ENTRIES_AT,
    ENTRY_BYTES,
    FIRST,
    GOAL_OF_FIRST,
    OTHERS,
    STATE_BYTES,
    STATES_AT,
    TARGET,
    TOKEN,
    bucket_of,
    link_of,
)
from services.proposer.fast.native import Ints, Longs, Table, fetch, loop

# A scout: the number of contexts it follows, then their states. The root is always followed, and isn't among them.
MOST_CONTEXTS = 10
SCOUT_WORDS = 1 + MOST_CONTEXTS
# Tokens that a scout is ahead of its writer, and contexts that are prefetched before it starts.
AHEAD, CONTEXTS = 3, 3


@loop
def fetch_contexts(words: Longs, rows: Table, state: int, links: int) -> None:
    """Follows `links` suffix links from `state`, the end of the text, and prefetches the state reached: the scout will
    start there."""
    for _ in range(links):
        if state > 0:
            state = link_of(rows, state)
    if state > 0:
        fetch(words[STATES_AT] + STATE_BYTES * state)


@loop
def sets_out(words: Longs, rows: Table, scout: Ints, state: int, token: int) -> None:
    """Starts from all contexts that something followed; their rows are in the cache."""
    count = 0
    while state > 0 and count < MOST_CONTEXTS:
        if rows[state, TARGET]:
            count += 1
            scout[count] = state
            if rows[state, OTHERS] and rows[state, TOKEN] != token:
                fetch(words[BUCKETS_AT] + BUCKET_BYTES * bucket_of(words, state, token))
        state = link_of(rows, state)
    fetch(words[BUCKETS_AT] + BUCKET_BYTES * bucket_of(words, state, token))
    scout[0] = count


@loop
def moves(words: Longs, rows: Table, buckets: Table, scout: Ints, token: int, then: int) -> None:
    """Moves by a token, whose rows were prefetched one move earlier; `then` is the next token, -1: not known."""
    count, last = 0, 0
    for at in range(1, scout[0] + 2):
        state = scout[at] if at <= scout[0] else 0
        target = rows[state, TARGET]
        if rows[state, TOKEN] != token and rows[state, OTHERS]:
            bucket = bucket_of(words, state, token)
            # Usually it is the bucket's first entry.
            fetch(words[ENTRIES_AT] + ENTRY_BYTES * buckets[bucket, FIRST])
            target = buckets[bucket, GOAL_OF_FIRST]
        elif rows[state, TOKEN] != token:
            target = 0
        if not target or target == last or count == MOST_CONTEXTS:
            continue
        last = target
        count += 1
        scout[count] = target
        fetch(words[STATES_AT] + STATE_BYTES * target)
        if then >= 0:
            fetch(words[BUCKETS_AT] + BUCKET_BYTES * bucket_of(words, target, then))
    scout[0] = count
    if then >= 0:
        fetch(words[BUCKETS_AT] + BUCKET_BYTES * bucket_of(words, 0, then))
