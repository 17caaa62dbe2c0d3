"""A chain becomes a tree: plain/branches.py, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.api.drafter import Draft
from services.proposer.fast.automaton.loops import Tables, link_of, opened, read, read_all, shortened, target_of
from services.proposer.fast.automaton.records import FOLLOWER, READER, follower_at
from services.proposer.native import Longs, Record, carray, ints_at, kept, loop, pointer_to
from services.proposer.plain.branches import (
    MAX_BEYOND,
    MAX_CONTEXTS,
    MAX_FOLLOWED,
    MAX_NODES,
    MAX_PLACES,
    MIN_PATH_SHARE,
    MIN_SHARE,
)
from services.proposer.plain.rates import COUNT_PRIOR

# The first `chain` nodes are given.
TREE = np.dtype([
    ("chain", np.int64), ("count", np.int64), ("tokens", np.int32, (MAX_NODES,)), ("parents", np.int32, (MAX_NODES,)),
    ("shares", np.float64, (MAX_NODES,)),
])  # fmt: skip
tree_at = pointer_to(TREE)


@loop
def _has(tree: Record, parent: int, token: int) -> bool:
    for place in range(parent + 1, tree.count):  # noqa: SIM110
        if tree.parents[place] == parent and tree.tokens[place] == token:
            return True
    return False


@loop
def _add(tree: Record, tables: Tables, token: int, target: int, share: float, reach: float, parent: int) -> None:
    """The token, and what most often followed it."""
    if _has(tree, parent, token):
        return
    states, state = tables.states, target
    for _ in range(MAX_BEYOND + 1):
        reach *= share
        if tree.count >= MAX_NODES or share < MIN_SHARE or reach < MIN_PATH_SHARE:
            return
        tree.tokens[tree.count], tree.parents[tree.count], tree.shares[tree.count] = token, parent, share
        parent = tree.count
        tree.count += 1
        if not states[state].best_count:
            return
        token = states[state].best
        share = states[state].best_count / (states[state].count + COUNT_PRIOR)
        state = target_of(tables, state, token)


@loop
def _add_others(
    tree: Record, tables: Tables, reader: Record, parent: int, left: float, reach: float, at_end: int
) -> None:
    """What followed the reader's contexts, the longest first, with the probability that the chain leaves."""
    states, entries = tables.states, tables.entries
    state = shortened(tables, reader.state, reader.length)
    for _ in range(MAX_CONTEXTS):
        if not state:
            break
        row = states[state]
        times = row.count - at_end + COUNT_PRIOR
        token, target, entry = np.int64(row.token), np.int64(row.target), np.int64(row.others)
        for _ in range(MAX_FOLLOWED):
            if not target:
                break
            _add(tree, tables, token, target, left * states[target].count / times, reach, parent)
            token, target = np.int64(entries[entry].token), np.int64(entries[entry].target)
            entry = np.int64(entries[entry].next_of_source)
        state = link_of(tables, state)


@kept
def _grow(tree_address: int, followers: Longs, ahead_address: int, aheads: int) -> None:
    """`followers`: addresses of those that have read the text, and not what is ahead of it."""
    tree, ahead = carray(tree_at(tree_address), 1)[0], carray(ints_at(ahead_address), aheads)
    copies = np.empty(1, FOLLOWER)
    for address in followers:
        given, reader = carray(follower_at(address), 1)[0], copies[0]
        reader.automaton_at, reader.end, reader.state, reader.length = (
            given.automaton_at, READER, given.state, given.length,
        )  # fmt: skip
        read_all(reader, ahead, 0)
        tables, reach = opened(given.automaton_at), 1.0
        at_end = 0 if given.end == READER or aheads else 1
        for place in range(min(tree.chain, MAX_PLACES)):
            share = tree.shares[place]
            _add_others(tree, tables, reader, place - 1, 1.0 - share, reach, at_end)
            reach *= share
            if reach < MIN_PATH_SHARE:
                break
            read(tables, reader, np.int64(tree.tokens[place]))
            at_end = 0


def grown(draft: Draft, followers: Sequence[int], ahead: Sequence[int]) -> Draft:
    """The draft, a chain, with branches; `followers`: addresses."""
    chain = len(draft.tokens)
    made: Any = np.zeros(1, TREE)
    tree, ahead_of = made[0], np.array(ahead, np.int32)
    tree["chain"] = tree["count"] = chain
    tree["tokens"][:chain], tree["shares"][:chain] = draft.tokens, draft.confidence
    tree["parents"][:chain] = range(-1, chain - 1)
    _grow(made.ctypes.data, np.array(followers, np.int64), ahead_of.ctypes.data, len(ahead_of))
    if (count := int(tree["count"])) == chain:
        return draft
    tokens, parents, shares = (tree[field][:count].tolist() for field in ("tokens", "parents", "shares"))
    return Draft(tokens, draft.source, draft.match_length, parents, shares)
