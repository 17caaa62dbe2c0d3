"""What must hold of an automaton at any time, looked up slowly. Says what is wrong instead of failing on it."""

from __future__ import annotations

from collections import defaultdict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from services.proposer.fast.automaton import loops
from services.proposer.fast.automaton.automaton import FastAutomaton
from services.proposer.fast.automaton.records import AUTOMATON, STATE
from services.proposer.native import Longs, Record, kept

Table = npt.NDArray[Any]
Edges = list[dict[int, int]]
Row = namedtuple("Row", STATE.names)  # type: ignore[misc]


def rows_of(states: Table) -> list[Row]:
    return [Row(*each) for each in states.tolist()]


def problems(automaton: FastAutomaton) -> list[str]:
    states, entries, buckets = automaton.tables()
    found = [*_table(entries, buckets, automaton)]
    if found:
        return found
    edges = _edges(states, entries)
    if isinstance(edges, str):
        return [edges]
    depth = automaton.figure("depth")
    return [*_size(automaton, states, edges), *_links(states, edges), *_counts(states, edges, depth)]


def transitions(automaton: FastAutomaton) -> tuple[Table, Edges]:
    """The states' rows, and where each token leads from each: for tests that walk it."""
    states, entries, _ = automaton.tables()
    edges = _edges(states, entries)
    assert not isinstance(edges, str), edges
    return states, edges


def _table(entries: Table, buckets: Table, automaton: FastAutomaton) -> Iterator[str]:
    """Every entry is in one bucket's chain, once, and in the right one."""
    count, low = automaton.figure("buckets"), automaton.figure("low")
    if not low <= count < 2 * low or count != len(buckets):
        yield f"{count} buckets do not lie between {low} and {2 * low}"
        return
    record: Record = np.zeros(1, AUTOMATON)
    record["buckets"], record["low"] = count, low
    right = np.zeros(len(entries), np.int64)
    _buckets_of(record, entries, right)
    seen = set()
    for bucket, entry in enumerate(buckets.tolist()):
        while entry:
            if entry in seen or not 0 < entry < len(entries):
                yield f"entry {entry} stands in two chains, or in none"
                return
            seen.add(entry)
            if right[entry] != bucket:
                yield f"entry {entry} stands in bucket {bucket}, where nobody looks for it"
            entry = int(entries[entry]["next_in_bucket"])
    if len(seen) != len(entries) - 1:
        yield f"{len(entries) - 1} entries, of which {len(seen)} can be found"


@kept
def _buckets_of(automata: Record, entries: Table, buckets: Longs) -> None:
    for at in range(1, entries.shape[0]):
        buckets[at] = loops.bucket_of(automata[0], np.int64(entries[at].source), np.int64(entries[at].token))


def _edges(states: Table, entries: Table) -> Edges | str:
    edges: Edges = [{} for _ in range(len(states))]
    listed = 0
    for state, row in enumerate(states):
        if row["target"]:
            edges[state][int(row["token"])] = int(row["target"])
        number = int(row["others"])
        while number:
            entry = entries[number]
            token = int(entry["token"])
            if entry["source"] != state or token in edges[state]:
                return f"state {state}: entry {number} is another's, or a token leads to two states"
            edges[state][token] = int(entry["target"])
            listed += 1
            number = int(entry["next_of_source"])
    return edges if listed == len(entries) - 1 else f"{len(entries) - 1} entries, of which {listed} are listed"


def _size(automaton: FastAutomaton, states: Table, edges: Edges) -> Iterator[str]:
    tokens = automaton.tokens
    if len(states) > 2 * tokens + 1 or sum(map(len, edges)) > 3 * tokens:
        yield f"{len(states)} states and {sum(map(len, edges))} transitions of {tokens} tokens"


def _links(states: Table, edges: Edges) -> Iterator[str]:
    """A suffix is shorter, may be followed by all that may follow the whole, and is reached by the same token."""
    rows = rows_of(states)
    reached_by: dict[int, set[int]] = defaultdict(set)
    if rows[0].link != -1 or rows[0].length:
        yield "the root has a link, or a length"
    for state, row in enumerate(rows):
        for token, goal in edges[state].items():
            reached_by[goal].add(token)
            if not 0 < goal < len(states) or rows[goal].length <= row.length:
                yield f"state {state}: {token} leads to {goal}, which is not longer"
            elif rows[rows[goal].link].length > row.length:
                yield f"state {state}: {token} leads to {goal}, whose shortest context is longer than that"
        if state and not 0 <= row.link < len(states):
            yield f"state {state} has the link {row.link}"
        elif state and rows[row.link].length >= row.length:
            yield f"state {state} has a link that is not shorter"
        elif state and not set(edges[state]) <= set(edges[row.link]):
            yield f"state {state} is followed by tokens that its suffix {row.link} is not"
    for state in range(1, len(states)):
        if len(reached_by[state]) != 1:
            yield f"state {state} is reached by the tokens {sorted(reached_by[state])}"


def _counts(states: Table, edges: Edges, depth: int) -> Iterator[str]:
    """A context occurs wherever a longer one does that ends with it; its best is the most frequent one."""
    rows = rows_of(states)
    longer = np.zeros(len(states), np.int64)
    for row in rows[1:]:
        if rows[row.link].length <= depth:
            longer[row.link] += row.count
    for state, row in enumerate(rows):
        # States of longer contexts only are not counted.
        if not state or rows[row.link].length > depth:
            continue
        if row.count < max(1, longer[state]):
            yield f"state {state} occurs {row.count} times, and with something before it {longer[state]} times"
        if rows[row.link].length >= depth:
            continue
        after = {token: int(rows[goal].count) for token, goal in edges[state].items()}
        best = max(after.values(), default=0)
        if row.best_count != best or (best and after.get(row.best) != best):
            yield f"state {state}: {row.best} follows {row.best_count} times; of {after} that isn't the most"
        if sum(after.values()) > row.count:
            yield f"state {state} is followed by more tokens than it occurs"
