"""A draft of all sources together, token by token: plain/blending.py, compiled. Knows nothing of whose texts they
are."""

from __future__ import annotations

import numpy as np

from services.proposer.fast.automaton.loops import link_of, opened, read, shortened
from services.proposer.fast.drafting.chances import (
    cell_of,
    cell_of_agreement,
    cell_of_last,
    cell_of_token,
    corrected,
    counted,
    rate_of,
)
from services.proposer.fast.drafting.records import LONGEST
from services.proposer.native import Doubles, Record, Records, loop
from services.proposer.plain.blending import MAX_CONTEXTS, SHORTER_FACTOR


@loop
def _predict_by_automaton(source: Record, rates: Doubles, limit: int) -> None:
    tables = opened(source.reader.automaton_at)
    length = min(source.reader.length, limit)
    state = shortened(tables, source.reader.state, length)
    source.cell = -1
    surest, asked = 0.0, 0
    while state and asked < MAX_CONTEXTS:
        row = tables.states[state]
        if row.best_count:
            cell = cell_of(source.source, length, counted(row.best_count, row.count - source.at_end))
            rate = rate_of(rates, cell)
            if rate > surest:
                source.token, source.cell = row.best, cell
                surest = rate * SHORTER_FACTOR
            asked += 1
        state = link_of(tables, state)
        length = np.int64(tables.states[state].length)
    source.at_end = 0


@loop
def _predict(source: Record, rates: Doubles, limit: int, at: int) -> None:
    """What the source predicts for token number `at` of the draft."""
    if not source.is_line:
        _predict_by_automaton(source, rates, limit)
    elif at < source.count:
        source.token, source.cell = source.tokens[at], source.cells[at]
    else:
        source.cell = -1


@loop
def _advance(source: Record, token: int) -> None:
    """The draft goes on with this token."""
    if not source.is_line:
        read(opened(source.reader.automaton_at), source.reader, token)
    elif source.cell >= 0 and source.token != token:
        source.count = 0


@loop
def _agreement(sources: Records, count: int, rates: Doubles) -> tuple[int, float, float, float]:
    """(the surest source, -1: none; its rate; the highest rate of others for the same token; and for another)"""
    first, surest, same, other = -1, 0.0, 0.0, 0.0
    for which in range(count):
        if sources[which].cell >= 0:
            rate = rate_of(rates, sources[which].cell)
            if rate > surest:
                first, surest = which, rate
    for which in range(count):
        if sources[which].cell >= 0 and which != first:
            rate = rate_of(rates, sources[which].cell)
            if sources[which].token == sources[first].token:
                same = max(same, rate)
            else:
                other = max(other, rate)
    return first, surest, same, other


@loop
def _keep(entry: Record, sources: Records, count: int, token: int, cells: tuple[int, int, int]) -> None:
    entry.token = token
    for at in range(3):
        entry.cells[at] = cells[at]
    for which in range(count):
        entry.by_token[which], entry.by_cell[which] = sources[which].token, sources[which].cell


@loop
def blend(
    sources: Records, count: int, rates: Doubles, limit: int, longest: int, least: float, last: int, record: Record,
    draft: Record,
) -> None:  # fmt: skip
    """As long as all tokens are accepted with a probability of at least `least`. `last` is the token before them. All
    predictions go into the record, also those of the token that wasn't likely enough, or its rate would never
    change."""
    probability = 1.0
    draft.count = 0
    while draft.count < longest:
        for which in range(count):
            _predict(sources[which], rates, limit, draft.count)
        first, surest, same, other = _agreement(sources, count, rates)
        if first < 0:
            break
        token = sources[first].token
        by_agreement = cell_of_agreement(surest, same, other)
        rate = rate_of(rates, by_agreement)
        by_token = cell_of_token(token, rate)
        rate = corrected(rates, by_token, rate)
        by_last = cell_of_last(last, rate)
        rate = corrected(rates, by_last, rate)
        place = record.ahead + draft.count
        if place < LONGEST:
            _keep(record.entries[place], sources, count, token, (by_agreement, by_token, by_last))
            record.count = place + 1
        probability *= rate
        if probability < least:
            break
        draft.tokens[draft.count], draft.shares[draft.count], last = token, rate, token
        sources[first].led += 1
        draft.count += 1
        for which in range(count):
            _advance(sources[which], token)
    best = sources[0]
    for which in range(1, count):
        if sources[which].led > best.led:
            best = sources[which]
    draft.matched, draft.source, draft.which = best.matched, best.source, best.which
