"""A chain becomes a tree: beside its tokens, what else followed the same contexts, and what followed that.

    chain       a b c            the context occurred 5 times: a followed 3 times, d twice
    tree      ┬ a b c            behind a, b followed 4 times, x once
              │ └ x
              └ d e

Only automata are looked at; the chain may come from any source. A branch is of use only where the chain's token is
rejected, so its probability is at most what that token leaves. Compiled; knows addresses and ints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.api.drafter import Draft
from services.proposer.fast.automaton.loops import (
    AUTOMATON,
    BEST_COUNT,
    BEST_TOKEN,
    COUNT,
    END,
    FOLLOWER_WORDS,
    GOAL,
    LABEL,
    LEN,
    LENGTH,
    NEXT_OF_SOURCE,
    OTHERS,
    STATE,
    TARGET,
    TOKEN,
    link_of,
    opened,
    read,
    shortened,
    target_of,
)
from services.proposer.fast.drafting.layout import AS_READER
from services.proposer.fast.native import Doubles, Ints, Longs, carray, ints_at, kept, longs, longs_at, loop

# Nodes of a tree, its chain's among them.
MOST = 64
# At most: places of the chain at which branches are looked for, contexts at each place, and tokens that followed each.
PLACES, CONTEXTS, FOLLOWED = 8, 6, 24
# Least probability of a node given the ones before it, and of its whole path.
LEAST, LEAST_IN_ALL = 0.02, 0.015
# Tokens that a branch goes on.
BEYOND = 6
# Added to the occurrences: counts are small.
_DOUBT = 0.5


@loop
def _beside(tokens: Ints, parents: Ints, count: int, parent: int, token: int) -> int:
    """The node of the token behind `parent`; -1: there is none."""
    for place in range(parent + 1, count):
        if parents[place] == parent and tokens[place] == token:
            return place
    return -1


@loop
def _consider(
    rows: Ints, words: Longs, entries: Ints, buckets: Ints, target: int, token: int, share: float, ahead: float,
    parent: int, tokens: Ints, parents: Ints, chances: Doubles, count: int,
) -> int:  # fmt: skip
    """Adds a token that followed, with what most often followed it; the number of nodes."""
    if share < LEAST or ahead * share < LEAST_IN_ALL or count >= MOST:
        return count
    if _beside(tokens, parents, count, parent, token) >= 0:
        return count
    tokens[count], parents[count], chances[count] = token, parent, share
    count += 1
    ahead *= share
    state = target
    for _ in range(BEYOND):
        if count >= MOST or not state or not rows[state, BEST_COUNT]:
            break
        share = rows[state, BEST_COUNT] / (rows[state, COUNT] + _DOUBT)
        ahead *= share
        if share < LEAST or ahead < LEAST_IN_ALL:
            break
        token = rows[state, BEST_TOKEN]
        tokens[count], parents[count], chances[count] = token, count - 1, share
        count += 1
        state = target_of(words, rows, entries, buckets, state, token)
    return count


@loop
def _others(
    words: Longs, rows: Ints, entries: Ints, buckets: Ints, follower: Longs, left: float, ahead: float, parent: int,
    itself: int, tokens: Ints, parents: Ints, chances: Doubles, count: int,
) -> int:  # fmt: skip
    """Adds what followed the follower's contexts, the longest first, with the probability that the chain leaves."""
    length = follower[LENGTH]
    state = shortened(rows, follower[STATE], length)
    for _ in range(CONTEXTS):
        if not state or count >= MOST:
            break
        times = rows[state, COUNT] - itself + _DOUBT
        target, entry = np.int64(rows[state, TARGET]), rows[state, OTHERS]
        token = rows[state, TOKEN]
        for _ in range(FOLLOWED):
            if not target:
                break
            share = left * rows[target, COUNT] / times
            count = _consider(
                rows, words, entries, buckets, target, token, share, ahead, parent, tokens, parents, chances, count
            )
            if not entry:
                break
            token, target = entries[entry, LABEL], np.int64(entries[entry, GOAL])
            entry = entries[entry, NEXT_OF_SOURCE]
        state = link_of(rows, state)
        if state:
            length = rows[state, LEN]
    return count


@kept
def _grow(
    followers_at: int, count: int, ahead_at: int, aheads: int, chain: int, nodes_at: int, chances: Doubles
) -> int:
    """`followers_at`: addresses of followers at the text's end, before what is ahead of it. The first `chain` nodes are
    given: tokens, and behind MOST of them their parents."""
    addresses = carray(longs_at(followers_at), count)
    aheads_of = carray(ints_at(ahead_at), aheads)
    nodes = carray(ints_at(nodes_at), 2 * MOST)
    tokens, parents = nodes[:MOST], nodes[MOST:]
    found = chain
    copy = np.empty(FOLLOWER_WORDS, np.int64)
    for which in range(count):
        follower = longs(addresses[which])
        for word in range(FOLLOWER_WORDS):
            copy[word] = follower[word]
        itself = 0 if follower[END] == AS_READER or aheads else 1
        copy[END] = AS_READER
        words, rows, entries, buckets = opened(copy[AUTOMATON])
        for at in range(aheads):
            read(words, rows, entries, buckets, copy, aheads_of[at])
        ahead = 1.0
        for place in range(min(chain, PLACES)):
            found = _others(
                words, rows, entries, buckets, copy, 1.0 - chances[place], ahead, place - 1, itself, tokens, parents,
                chances, found,
            )  # fmt: skip
            ahead *= chances[place]
            if ahead < LEAST_IN_ALL:
                break
            read(words, rows, entries, buckets, copy, tokens[place])
            itself = 0
    return found


def grown(draft: Draft, followers: Sequence[int], ahead: Sequence[int]) -> Draft:
    """The draft, a chain, with branches; `followers`: addresses."""
    chain = len(draft.tokens)
    nodes, chances = np.empty(2 * MOST, np.int32), np.empty(MOST)
    nodes[:chain], nodes[MOST : MOST + chain], chances[:chain] = draft.tokens, range(-1, chain - 1), draft.confidence
    ahead_of: Any = np.array(ahead, np.int32)
    addresses = np.array(followers, np.int64)
    count = _grow(
        addresses.ctypes.data, len(addresses), ahead_of.ctypes.data, len(ahead_of), chain, nodes.ctypes.data,
        chances,
    )  # fmt: skip
    if count == chain:
        return draft
    tokens, parents = nodes[:count].tolist(), nodes[MOST : MOST + count].tolist()
    return Draft(tokens, draft.source, draft.match_length, parents, chances[:count].tolist())
