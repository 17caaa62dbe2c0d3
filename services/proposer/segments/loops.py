"""Drafts from one segment: what followed a text's last tokens there. Compiled; relies on the checks of file.py.

A segment is its text, with a separator (-1) around each of many texts, and the places of all tokens, sorted by the
tokens up to them, read backwards from the place itself: up to DEPTH tokens, and never beyond a separator, which is less
than any token. The occurrences of the last n tokens of a context are then an interval of places, for each n; the
intervals are nested around the one place where the whole context belongs:

    text       - a b c a b d -             the places of "b" are 2 and 5; "ab" has the same ones
    places     1 4  2 5  3  6              sorted by  a-, ab.., ba-, ba.., cba-, dba..
    context    ... a b                     belongs before 2; what followed: text[3], text[6], c and d

Counts are exact where a context occurred at most VOTERS times; otherwise that many occurrences are counted, evenly
spread.
"""

from __future__ import annotations

import numpy as np

from services.proposer.native import Ints, Record, Records, carray, ints_at, loop, pointer_to

# Addresses of the sections, then sizes: `words` counts separators, too.
SEGMENT = np.dtype([(name, np.int64) for name in ("text_at", "positions_at", "words", "tokens", "depth")])
SEPARATOR = -1
VOTERS = 32
# A score this close to the best may be the best: the bound isn't rounded as the sum is.
_NEARLY = 1 - 1e-9
segment_at = pointer_to(SEGMENT)


# Where a context belongs ------------------------------------------------------------------------------------


@loop
def _agreeing(text: Ints, place: int, context: Ints, most: int) -> int:
    """How many tokens before and at the place are the context's last ones."""
    same = 0
    while same < most and text[place - same] == context[context.size - 1 - same]:
        same += 1
    return same


@loop
def _bound(text: Ints, positions: Ints, context: Ints, tokens: int, inclusive: bool, low: int, high: int) -> int:
    """The number of places less than the context's last tokens, between `low` and `high`; `inclusive`: or equal to
    them."""
    while low < high:
        middle = (low + high) // 2
        place = positions[middle]
        same = _agreeing(text, place, context, tokens)
        if inclusive if same == tokens else text[place - same] < context[context.size - 1 - same]:
            low = middle + 1
        else:
            high = middle
    return low


# Voting -----------------------------------------------------------------------------------------------------


@loop
def _spread(positions: Ints, begin: int, end: int, voters: Ints) -> int:
    """The occurrences that are counted: all of an interval, or VOTERS of it."""
    size = end - begin
    if size <= VOTERS:
        for at in range(size):
            voters[at] = positions[begin + at]
        return size
    for at in range(VOTERS):
        voters[at] = positions[begin + (2 * at + 1) * size // (2 * VOTERS)]
    return VOTERS


@loop
def _vote(text: Ints, voters: Ints, count: int, ahead: int, tokens: Ints, votes: Ints, latest: Ints) -> tuple[int, int]:
    """(token, votes for it) of the tokens `ahead` of the voters; of equals, the last in the text. Ends of texts don't
    vote."""
    distinct = 0
    best = -1
    for at in range(count):
        place = voters[at]
        token = text[place + ahead]
        if token == SEPARATOR:
            continue
        seen = 0
        while seen < distinct and tokens[seen] != token:
            seen += 1
        if seen == distinct:
            distinct += 1
            tokens[seen], votes[seen], latest[seen] = token, 0, place
        votes[seen] += 1
        latest[seen] = max(latest[seen], place)
    for seen in range(distinct):
        if best < 0 or votes[seen] > votes[best] or (votes[seen] == votes[best] and latest[seen] > latest[best]):
            best = seen
    return (tokens[best], votes[best]) if best >= 0 else (SEPARATOR, 0)


@loop
def _walk(
    text: Ints, voters: Ints, count: int, budget: int, least: float, best: float, scratch: Ints, draft: Record
) -> None:
    """The most frequent tokens behind the voters, as long as their probability is at least `least`, and as long as the
    score may still exceed the best. Voters that went on otherwise drop out."""
    probability = 1.0
    draft.count, draft.score = 0, 0.0
    while draft.count < budget:
        token, votes = _vote(text, voters, count, draft.count + 1, scratch[0], scratch[1], scratch[2])
        if not votes:
            break
        share = votes / count
        probability *= share
        if probability < least or draft.score + probability * (budget - draft.count) < best * _NEARLY:
            break
        draft.tokens[draft.count], draft.shares[draft.count] = token, share
        draft.count += 1
        draft.score += probability
        kept = 0
        for at in range(count):
            if text[voters[at] + draft.count] == token:
                voters[kept] = voters[at]
                kept += 1
        count = kept


@loop
def guess(
    address: int, context: Ints, longest: int, factor: float, offset: float, least: float, drafts: Records
) -> None:
    """The first draft becomes the best one behind the context, the text's last tokens in their order.

    Contexts that occurred at the same places were followed by the same tokens: only the longest of them is looked at,
    and budgets shrink with it, so most of the shorter ones never are.
    """
    segment, best, trial = carray(segment_at(address), 1)[0], drafts[0], drafts[1]
    text = carray(ints_at(segment.text_at), segment.words)
    positions = carray(ints_at(segment.positions_at), segment.tokens)
    best.count, best.matched, best.score = 0, 0, 0.0
    usable, most = 0, min(context.size, segment.depth)
    while usable < most and context[context.size - 1 - usable] >= 0:
        usable += 1
    if not usable or not positions.size or longest <= 0:
        return
    voters, scratch = np.empty(VOTERS, np.int32), np.empty((3, VOTERS), np.int32)
    begin = end = _bound(text, positions, context, usable, False, 0, positions.size)
    while True:
        matched = 0
        if begin > 0:
            matched = _agreeing(text, positions[begin - 1], context, usable)
        if end < positions.size:
            matched = max(matched, _agreeing(text, positions[end], context, usable))
        budget = min(longest, int(matched * factor + offset + 1e-6))
        if not matched or budget <= best.score:
            return
        begin = _bound(text, positions, context, matched, False, 0, begin)
        end = _bound(text, positions, context, matched, True, end, positions.size)
        voting = _spread(positions, begin, end, voters)
        _walk(text, voters, voting, budget, least, best.score, scratch, trial)
        if trial.score > best.score:
            trial.matched = matched
            drafts[0] = drafts[1]
