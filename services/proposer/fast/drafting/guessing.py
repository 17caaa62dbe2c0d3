"""Drafts from one source: proposer/suffix.py and ngram.py, compiled. Knows nothing of whose text it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.proposer.fast.automaton.loops import Tables, link_of, opened, shortened, target_of
from services.proposer.fast.automaton.records import READER
from services.proposer.fast.drafting.chances import counted
from services.proposer.native import Ints, Record, Records, loop


class Rule(NamedTuple):
    factor: float
    offset: float
    least: float


@loop
def _walk(tables: Tables, state: int, length: int, limit: int, budget: int, least: float, draft: Record) -> None:
    """The most frequent tokens behind the context, while all of them are as probable as `least`. Beyond `limit` the
    context is its own last `limit` tokens."""
    states, probability = tables.states, 1.0
    draft.count, draft.matched, draft.score = 0, length, 0.0
    while draft.count < budget and states[state].best_count:
        share = states[state].best_count / states[state].count
        probability *= share
        if probability < least:
            break
        token = np.int64(states[state].best)
        draft.tokens[draft.count], draft.shares[draft.count] = token, share
        draft.count += 1
        draft.score += probability
        state = target_of(tables, state, token)
        if length + draft.count > limit:
            state = shortened(tables, state, limit)


@loop
def most_frequent(tables: Tables, reader: Record, limit: int, longest: int, rule: Rule, drafts: Records) -> None:
    """The best draft of all contexts of up to `limit` tokens.

    No draft's score is above its length times its first token's probability, and budgets shrink with the context: that
    bounds what has to be looked at.
    """
    length = min(reader.length, limit)
    state = shortened(tables, reader.state, length)
    best, trial = drafts[0], drafts[1]
    best.count, best.score = 0, 0.0
    while state:
        budget = min(longest, np.int64(length * rule.factor + rule.offset + 1e-6))
        if budget <= best.score:
            break
        _walk(tables, state, length, limit, budget, rule.least, trial)
        if trial.score > best.score:
            drafts[0] = drafts[1]
        state = link_of(tables, state)
        length = np.int64(tables.states[state].length)


@loop
def _place_before(tables: Tables, follower: Record) -> tuple[int, int]:
    """(the place behind the last earlier occurrence of the follower's last tokens, how many of them); length 0: none.
    The writer's own occurrence is the last one, so it has kept the one before that."""
    if follower.end != READER:
        return follower.before, follower.before_length
    length = min(follower.length, tables.automata[0].looked_up)
    state = shortened(tables, follower.state, length)
    return (np.int64(tables.lasts[state]), length) if state else (np.int64(0), np.int64(0))  # type: ignore[return-value]


@loop
def most_recent(
    follower: Record, least_size: int, longest: int, text: Ints, ahead: Ints, calibrated: bool, draft: Record
) -> None:
    """What came behind the last earlier occurrence of the text's last few tokens. At the end it goes on with its own
    guess."""
    tables = opened(follower.automaton_at)
    states = tables.states
    place, size = _place_before(tables, follower)
    draft.count, draft.matched, draft.score = 0, size, 0.0
    if not size or size < least_size:
        return
    draft.count = longest
    period, probability = text.size + ahead.size - place, 1.0
    state, length = shortened(tables, follower.state, size), size
    at_end = 0 if follower.end == READER else 1
    for at in range(longest):
        source = place + at % period
        token = np.int64(text[source] if source < text.size else ahead[source - text.size])
        target = target_of(tables, state, token)
        while state and not target:
            state = link_of(tables, state)
            length = np.int64(states[state].length)
            target = target_of(tables, state, token)
        times = np.int64(states[state].count) if state else tables.automata[0].tokens
        followed = states[target].count if target else 0
        share = counted(followed, times - at_end) if calibrated else followed / times
        at_end = 0
        draft.tokens[at], draft.shares[at] = token, share
        probability *= share
        draft.score += probability
        length = min(length + 1, tables.automata[0].depth) if target else np.int64(0)
        state = shortened(tables, target, length)
