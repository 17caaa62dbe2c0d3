"""The one compiled call of a step: the new tokens of all texts of a batch are taken in, then each text is drafted for.

First all texts are learned by their namespaces, then each is added to its own automaton, then all are drafted for, so
that all read the newest state. Where memory has to grow or an automaton to be replaced, the call returns a status,
Python does it and calls again; rows keep how far each text has been taken in. texts.py fills the records.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.proposer.fast.automaton.loops import FULL, NEEDS_ROOM, opened, read_all, write
from services.proposer.fast.automaton.records import READER
from services.proposer.fast.drafting import candidates
from services.proposer.fast.drafting.blending import blend
from services.proposer.fast.drafting.chances import (
    CELL_WORDS,
    CELLS,
    CORPUS,
    NGRAM,
    OWN,
    PREDICTION,
    SHARED,
    STORE,
    cell_of,
    rate_of,
)
from services.proposer.fast.drafting.guessing import Rule, most_frequent, most_recent
from services.proposer.fast.drafting.predicting import predicted
from services.proposer.fast.drafting.records import (
    LONGEST,
    OWN_NEEDS_ROOM,
    SPACE_IS_FULL,
    SPACE_NEEDS_ROOM,
    control_at,
    draft_at,
    records_at,
    request_at,
    row_at,
    space_at,
)
from services.proposer.native import (
    Doubles,
    Ints,
    Longs,
    Record,
    Records,
    carray,
    doubles_at,
    ints_at,
    kept,
    longs_at,
    loop,
)
from services.proposer.segments.loops import guess as search

# A bit beside those of the sources: all of them together, token by token.
BLENDED = 1 << 10
# Rates decide how long a blended draft is; this bounds how many contexts segments look at.
_IN_SEGMENTS = 4.0


class AskedDraft(NamedTuple):
    """One text of the batch, and what is asked for it. `space`: of its namespace, where it has one."""

    row: Record
    space: Record
    text: Ints
    ahead: Ints
    longest: int


# Taking in ----------------------------------------------------------------------------------------------------


@loop
def _stops(control: Record, status: int, which: int) -> bool:
    control.status, control.which = status, which
    return False


@loop
def _starts(follower: Record, automaton: int, end: int) -> None:
    follower.automaton_at, follower.end = automaton, end
    follower.state = follower.length = follower.before = follower.before_length = 0


@loop
def _learn(control: Record, row: Record, space: Record, text: Ints, upto: int) -> bool:
    """The new tokens go into the namespace's automaton."""
    if row.writes != space.serial:
        row.writes = space.serial
        _starts(row.writer, space.automaton_at, 0)
    tables = opened(space.automaton_at)
    while row.written < upto:
        found = write(tables, row.writer, np.int64(text[row.written]))
        if found == NEEDS_ROOM:
            return _stops(control, SPACE_NEEDS_ROOM, row.space)  # type: ignore[no-any-return]
        if found == FULL:
            if tables.automata[0].tokens:
                return _stops(control, SPACE_IS_FULL, row.space)  # type: ignore[no-any-return]
            # Too small for a single token.
            row.written = upto
            return True
        row.written += 1
    return True


@loop
def _take_in(control: Record, rows: Records, spaces: Records, requests: Records) -> bool:
    """False: a status wants something done first."""
    for request in requests:
        row, text = rows[request.row], carray(ints_at(request.text_at), request.length)
        learns = row.space >= 0 and row.learns and row.written < request.upto
        if learns and not _learn(control, row, spaces[row.space], text, request.upto):
            return False
    for request in requests:
        row, text = rows[request.row], carray(ints_at(request.text_at), request.length)
        tables = opened(row.own.automaton_at)
        while row.joined < request.upto:
            if write(tables, row.own, np.int64(text[row.joined])) < 0:
                return _stops(control, OWN_NEEDS_ROOM, request.row)  # type: ignore[no-any-return]
            row.joined += 1
    return True


# What sources read --------------------------------------------------------------------------------------------


@loop
def _rates_of(row: Record) -> Doubles:
    """A text's rates: its namespace's, or its own without one."""
    return carray(doubles_at(row.rates_at), (CELLS, CELL_WORDS))  # type: ignore[no-any-return]


@loop
def _catch_up(row: Record, space: Record, text: Ints, depth: int) -> None:
    """The text's reader of its namespace's automaton is advanced to its end. One that is far behind, or finds another
    automaton, reads only as many tokens as a context has."""
    late = max(0, text.size - depth)
    if row.reads != space.serial or row.read < late:
        row.reads = space.serial
        _starts(row.reader, space.automaton_at, READER)
        read_all(row.reader, text, late)
    else:
        read_all(row.reader, text, row.read)
    row.read = text.size


@loop
def _behind(follower: Record, ahead: Ints, copy: Record) -> None:
    """The copy becomes the follower, and has read what is ahead."""
    copy.automaton_at, copy.end, copy.state, copy.length = (
        follower.automaton_at, follower.end, follower.state, follower.length,
    )  # fmt: skip
    copy.before, copy.before_length = follower.before, follower.before_length
    if ahead.size:
        copy.end = READER
        read_all(copy, ahead, 0)


@loop
def _context_of(control: Record, asked: AskedDraft) -> Ints:
    """The last tokens of the text and what is ahead of it."""
    text, ahead = asked.text, asked.ahead
    context = control.context[: min(control.depth, text.size + ahead.size)]
    begin = text.size + ahead.size - context.size
    for at in range(context.size):
        context[at] = text[begin + at] if begin + at < text.size else ahead[begin + at - text.size]
    return context  # type: ignore[no-any-return]


@loop
def _segments_of(asked: AskedDraft, source: int) -> Longs:
    """Addresses of a source's segments."""
    if source == STORE:
        return carray(longs_at(asked.space.segments_at), asked.space.segments)  # type: ignore[no-any-return]
    return carray(longs_at(asked.row.corpora_at), asked.row.corpora)  # type: ignore[no-any-return]


# One source alone ---------------------------------------------------------------------------------------------


@loop
def _offer(draft: Record, source: int, which: int, answers: Records, at: int) -> None:
    """Keeps the draft if its score is the best so far."""
    if draft.count and (not answers[at].count or draft.score > answers[at].score):
        draft.source, draft.which = source, which
        answers[at] = draft


@loop
def _best_of(control: Record, asked: AskedDraft, sources: int, rule: Rule, answers: Records, at: int) -> None:
    """Each of the sources drafts; the draft with the best score is the answer."""
    row, space, longest, drafts = asked.row, asked.space, asked.longest, control.drafts
    reader = control.sources[0].reader
    if sources & 1 << OWN:
        _behind(row.own, asked.ahead, reader)
        most_frequent(opened(reader.automaton_at), reader, control.depth, longest, rule, drafts)
        _offer(drafts[0], OWN, 0, answers, at)
    if sources & 1 << NGRAM:
        _behind(row.own, asked.ahead, reader)
        most_recent(reader, control.least_ngram, longest, asked.text, asked.ahead, False, drafts[0])
        _offer(drafts[0], NGRAM, 0, answers, at)
    if sources & 1 << PREDICTION and row.prediction_at:
        cells, rates = control.sources[0].cells, _rates_of(row)
        drafts[0].score = 0.0
        for token in range(predicted(control, row, asked.text, asked.ahead, longest, cells)):
            drafts[0].shares[token] = rate_of(rates, np.int64(cells[token]))
        _offer(drafts[0], PREDICTION, 0, answers, at)
    if row.space < 0:
        return
    if sources & 1 << SHARED and space.automaton_at:
        _catch_up(row, space, asked.text, control.depth)
        _behind(row.reader, asked.ahead, reader)
        most_frequent(opened(reader.automaton_at), reader, control.depth, longest, rule, drafts)
        _offer(drafts[0], SHARED, 0, answers, at)
    for source in range(STORE, CORPUS + 1):
        if sources & 1 << source:
            segments, context = _segments_of(asked, source), _context_of(control, asked)
            for which in range(segments.size):
                search(segments[which], context, longest, rule.factor, rule.offset, rule.least, drafts)
                _offer(drafts[0], source, which, answers, at)


# All sources together -----------------------------------------------------------------------------------------


@loop
def _by_automaton(predicts: Record, source: int, follower: Record, ahead: Ints, at_end: bool) -> None:
    _behind(follower, ahead, predicts.reader)
    predicts.source, predicts.which, predicts.is_line, predicts.led = source, 0, 0, 0
    predicts.matched, predicts.at_end = predicts.reader.length, at_end and not ahead.size


@loop
def _by_line(predicts: Record, source: int, which: int, draft: Record) -> None:
    """The draft becomes a line."""
    predicts.source, predicts.which, predicts.is_line, predicts.led = source, which, 1, 0
    predicts.matched, predicts.count = draft.matched, draft.count
    for at in range(draft.count):
        predicts.tokens[at] = draft.tokens[at]
        if source != PREDICTION:
            predicts.cells[at] = cell_of(source, draft.matched + at, draft.shares[at])


@loop
def _expected_of(rates: Doubles, line: Record, least: float) -> float:
    """How many tokens of a line are expected to be accepted."""
    score, probability = 0.0, 1.0
    for at in range(line.count):
        probability *= rate_of(rates, np.int64(line.cells[at]))
        if probability < least:
            break
        score += probability
    return score


@loop
def _by_best_segment(control: Record, asked: AskedDraft, source: int, count: int, least: float, rates: Doubles) -> int:
    """The best line of a kind of segments is one more source; how many sources there are."""
    segments, context, best = _segments_of(asked, source), _context_of(control, asked), 0.0
    for which in range(segments.size):
        search(segments[which], context, asked.longest, _IN_SEGMENTS, 0.0, least, control.drafts)
        # Behind the sources, until it is the best.
        line = control.sources[count + 1]
        _by_line(line, source, which, control.drafts[0])
        score = _expected_of(rates, line, least)
        if score > best:
            best = score
            control.sources[count] = line
    return count + 1 if best > 0 else count


@loop
def _sources(control: Record, asked: AskedDraft, least: float, rates: Doubles) -> int:
    """The number of sources that may predict behind the text and what is ahead of it."""
    row, space, text, ahead = asked.row, asked.space, asked.text, asked.ahead
    sources, draft, count = control.sources, control.drafts[0], 1
    _by_automaton(sources[0], OWN, row.own, ahead, True)
    if row.space >= 0:
        if space.automaton_at:
            _catch_up(row, space, text, control.depth)
            at_end = row.writes == space.serial and row.written == text.size
            _by_automaton(sources[count], SHARED, row.reader, ahead, at_end)
            count += 1
        count = _by_best_segment(control, asked, STORE, count, least, rates)
        count = _by_best_segment(control, asked, CORPUS, count, least, rates)
    if row.prediction_at and predicted(control, row, text, ahead, asked.longest, sources[count].cells):
        _by_line(sources[count], PREDICTION, 0, draft)
        count += 1
    # Its place is free: nothing else comes behind it.
    _behind(row.own, ahead, sources[count].reader)
    most_recent(sources[count].reader, control.least_ngram, asked.longest, text, ahead, True, draft)
    if draft.count:
        _by_line(sources[count], NGRAM, 0, draft)
        count += 1
    return count


@loop
def _together(control: Record, asked: AskedDraft, least: float, answer: Record) -> None:
    """The draft of all sources together is the answer."""
    rates, text, ahead = _rates_of(asked.row), asked.text, asked.ahead
    count = _sources(control, asked, least, rates)
    both = carray(records_at(asked.row.records_at), 1)[0]
    record = both.records[candidates.begin(both, text.size, ahead, count)]
    last = np.int64(-1)
    if ahead.size:
        last = np.int64(ahead[ahead.size - 1])
    elif text.size:
        last = np.int64(text[text.size - 1])
    blend(control.sources, count, rates, control.depth, asked.longest, least, last, record, answer)


@kept
def step(
    control_address: int, requests_address: int, count: int, aheads_address: int, sources: int, factor: float,
    offset: float, least: float, answers_address: int,
) -> bool:  # fmt: skip
    """False: a status wants something done first. 0 sources: only new tokens are taken in, no drafts are made."""
    control = carray(control_at(control_address), 1)[0]
    rows, spaces = carray(row_at(control.rows_at), control.rows), carray(space_at(control.spaces_at), control.spaces)
    requests, answers = carray(request_at(requests_address), count), carray(draft_at(answers_address), count)
    rule = Rule(factor, offset, least)
    if not _take_in(control, rows, spaces, requests):
        return False
    for at in range(count):
        request, answer = requests[at], answers[at]
        row, text = rows[request.row], carray(ints_at(request.text_at), request.length)
        ahead = carray(ints_at(aheads_address), request.aheads)
        aheads_address += 4 * request.aheads
        answer.count = 0
        if sources & BLENDED:
            candidates.compare(carray(records_at(row.records_at), 1)[0], text, _rates_of(row))
        longest = min(request.budget, LONGEST)
        if sources and longest > 0 and row.joined == text.size:
            asked = AskedDraft(row, spaces[max(0, row.space)], text, ahead, longest)
            if sources & BLENDED:
                _together(control, asked, least, answer)
            else:
                _best_of(control, asked, sources, rule, answers, at)
    return True
