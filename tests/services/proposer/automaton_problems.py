"""What must hold of an automaton at any time, looked up slowly. Says what is wrong instead of failing on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from services.proposer.fast.automaton import loops
from services.proposer.fast.automaton.automaton import Automaton
from services.proposer.fast.automaton.loops import (
    BEST_COUNT,
    BEST_TOKEN,
    COUNT,
    GOAL,
    LABEL,
    LEN,
    LINK,
    NEXT_IN_BUCKET,
    OTHERS,
    SOURCE,
    TARGET,
    TOKEN,
)  # fmt: skip
from services.proposer.fast.native import Longs, kept

Table = npt.NDArray[np.int32]
Edges = list[dict[int, int]]


def problems(automaton: Automaton) -> list[str]:
    states, entries, buckets = automaton.tables()
    found = [*_table(entries, buckets, automaton.buckets_in_use)]
    if found:
        return found
    edges = _edges(states, entries)
    if isinstance(edges, str):
        return [edges]
    return [*_size(automaton, states, edges), *_links(states, edges), *_counts(states, edges, automaton.depth)]


def transitions(automaton: Automaton) -> tuple[Table, Edges]:
    """The states' rows, and where each token leads from each: for tests that walk it."""
    states, entries, _ = automaton.tables()
    edges = _edges(states, entries)
    assert not isinstance(edges, str), edges
    return states, edges


def _table(entries: Table, buckets: Table, in_use: tuple[int, int]) -> Iterator[str]:
    """Every entry is in one bucket's chain, once, and in the right one."""
    count, low = in_use
    if not low <= count < 2 * low or count != len(buckets):
        yield f"{count} buckets do not lie between {low} and {2 * low}"
        return
    words = np.zeros(loops.AUTOMATON_WORDS, np.int64)
    words[loops.BUCKETS], words[loops.LOW] = count, low
    right = np.zeros(len(entries), np.int64)
    _buckets_of(words, entries, right)
    seen = set()
    for bucket, (entry, goal) in enumerate(buckets.tolist()):
        if goal != (entries[entry, GOAL] if entry else 0):
            yield f"bucket {bucket} says that its first entry leads to {goal}"
        while entry:
            if entry in seen or not 0 < entry < len(entries):
                yield f"entry {entry} stands in two chains, or in none"
                return
            seen.add(entry)
            if right[entry] != bucket:
                yield f"entry {entry} stands in bucket {bucket}, where nobody looks for it"
            entry = int(entries[entry, NEXT_IN_BUCKET])
    if len(seen) != len(entries) - 1:
        yield f"{len(entries) - 1} entries, of which {len(seen)} can be found"


@kept
def _buckets_of(words: Longs, entries: Table, buckets: Longs) -> None:
    for entry in range(1, entries.shape[0]):
        buckets[entry] = loops.bucket_of(words, np.int64(entries[entry, SOURCE]), entries[entry, LABEL])


def _edges(states: Table, entries: Table) -> Edges | str:
    edges: Edges = [{} for _ in range(len(states))]
    listed = 0
    for state, row in enumerate(states.tolist()):
        if row[TARGET]:
            edges[state][row[TOKEN]] = row[TARGET]
        entry = row[OTHERS]
        while entry:
            source, label, goal, _, after = entries[entry].tolist()
            if source != state or label in edges[state]:
                return f"state {state}: entry {entry} is another's, or a token leads to two states"
            edges[state][label] = goal
            listed += 1
            entry = after
    return edges if listed == len(entries) - 1 else f"{len(entries) - 1} entries, of which {listed} are listed"


def _size(automaton: Automaton, states: Table, edges: Edges) -> Iterator[str]:
    tokens = automaton.tokens
    if len(states) > 2 * tokens + 1 or sum(map(len, edges)) > 3 * tokens:
        yield f"{len(states)} states and {sum(map(len, edges))} transitions of {tokens} tokens"


def _links(states: Table, edges: Edges) -> Iterator[str]:
    """A suffix is shorter, may be followed by all that may follow the whole, and is reached by the same token."""
    reached_by: dict[int, set[int]] = defaultdict(set)
    if states[0, LINK] != -1 or states[0, LEN]:
        yield "the root has a link, or a length"
    for state, row in enumerate(states.tolist()):
        for token, goal in edges[state].items():
            reached_by[goal].add(token)
            if not 0 < goal < len(states) or states[goal, LEN] <= row[LEN]:
                yield f"state {state}: {token} leads to {goal}, which is not longer"
            elif states[states[goal, LINK], LEN] > row[LEN]:
                yield f"state {state}: {token} leads to {goal}, whose shortest context is longer than that"
        if state and not 0 <= row[LINK] < len(states):
            yield f"state {state} has the link {row[LINK]}"
        elif state and states[row[LINK], LEN] >= row[LEN]:
            yield f"state {state} has a link that is not shorter"
        elif state and not set(edges[state]) <= set(edges[row[LINK]]):
            yield f"state {state} is followed by tokens that its suffix {row[LINK]} is not"
    for state in range(1, len(states)):
        if len(reached_by[state]) != 1:
            yield f"state {state} is reached by the tokens {sorted(reached_by[state])}"


def _counts(states: Table, edges: Edges, depth: int) -> Iterator[str]:
    """A context occurs wherever a longer one does that ends with it; its best is the most frequent one."""
    longer = np.zeros(len(states), np.int64)
    for row in states[1:].tolist():
        if states[row[LINK], LEN] <= depth:
            longer[row[LINK]] += row[COUNT]
    for state, row in enumerate(states.tolist()):
        # States of longer contexts only are not counted.
        if not state or states[row[LINK], LEN] > depth:
            continue
        if row[COUNT] < max(1, longer[state]):
            yield f"state {state} occurs {row[COUNT]} times, and with something before it {longer[state]} times"
        if states[row[LINK], LEN] >= depth:
            continue
        after = {token: int(states[goal, COUNT]) for token, goal in edges[state].items()}
        best = max(after.values(), default=0)
        if row[BEST_COUNT] != best or (best and after.get(row[BEST_TOKEN]) != best):
            yield f"state {state}: {row[BEST_TOKEN]} follows {row[BEST_COUNT]} times; of {after} that isn't the most"
        if sum(after.values()) > row[COUNT]:
            yield f"state {state} is followed by more tokens than it occurs"
