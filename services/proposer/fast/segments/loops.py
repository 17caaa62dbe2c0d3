"""Drafts from one segment: what followed a text's last tokens there. Compiled by numba; knows addresses and ints, and
relies on the checks of file.py.

A segment is its text, with a separator (-1) around each of many texts, and the places of all tokens, sorted by the
tokens up to them, read backwards from the place itself: up to DEPTH tokens, and never beyond a separator, which is less
than any token. The occurrences of the last n tokens of a context are then an interval of places, for each n; the
intervals are nested around the one place where the whole context belongs:

    text       - a b c a b d -             the places of "b" are 2 and 5; "ab" has the same ones
    places     1 4  2 5  3  6              sorted by  a-, ab.., ba-, ba.., cba-, dba..
    context    ... a b                     belongs before 2; what followed: text[3], text[6], c and d

An index has the last INDEX_TOKENS tokens of every STEP-th place side by side: most of a search stays in it. Counts are
exact where a context occurred at most VOTERS times; otherwise that many occurrences are counted, evenly spread.
"""

from __future__ import annotations

import numpy as np

from services.proposer.fast.native import Doubles, Ints, Longs, carray, ints_at, kept, loop

# A segment's own words, 64 bits each: addresses, then sizes. TEXT_WORDS counts separators, too; ROWS are the index's.
TEXT_AT, POSITIONS_AT, INDEX_AT, TEXT_WORDS, TOKENS, ROWS, DEPTH = range(7)
SEGMENT_WORDS = 7
SEPARATOR = -1
# Part of the file's format.
STEP, INDEX_TOKENS = 64, 4
VOTERS = 32
# Words about a draft: its length, and that of its context. As in drafting/guessing.py.
DRAFTED, MATCHED = 1, 2
# A score this close to the best may be the best: the bound isn't rounded as the sum is.
_NEARLY = 1 - 1e-9


# Where a context belongs ------------------------------------------------------------------------------------


@loop
def _agreeing(text: Ints, place: int, context: Ints, length: int, usable: int) -> int:
    """How many tokens before and at the place are the context's last ones."""
    same = 0
    while same < usable and text[place - same] == context[length - 1 - same]:
        same += 1
    return same


@loop
def _rows_before(index: Ints, context: Ints, length: int, tokens: int, inclusive: bool) -> int:
    """The number of rows less than the context's last tokens; `inclusive`: or equal to them."""
    low, high = 0, index.shape[0]
    while low < high:
        middle = (low + high) // 2
        at = 0
        while at < tokens and index[middle, at] == context[length - 1 - at]:
            at += 1
        if inclusive if at == tokens else index[middle, at] < context[length - 1 - at]:
            low = middle + 1
        else:
            high = middle
    return low


@loop
def _belongs(text: Ints, positions: Ints, index: Ints, context: Ints, length: int, usable: int) -> int:
    """The first entry that isn't less than the whole context."""
    tokens = min(usable, INDEX_TOKENS)
    before = _rows_before(index, context, length, tokens, False)
    upto = before
    if before < index.shape[0] and index[before, 0] == context[length - 1]:
        upto = _rows_before(index, context, length, tokens, True)
    low: int = max(0, (before - 1) * STEP + 1)
    high = min(positions.shape[0], upto * STEP)
    while low < high:
        middle = (low + high) // 2
        place = positions[middle]
        same = _agreeing(text, place, context, length, usable)
        if same < usable and text[place - same] < context[length - 1 - same]:
            low = middle + 1
        else:
            high = middle
    return low


@loop
def _first(text: Ints, positions: Ints, index: Ints, context: Ints, length: int, tokens: int, inside: int) -> int:
    """The first entry that ends with the context's last `tokens`, when those before `inside` are in question.
    `outside` doesn't, and `inside` does, or would."""
    outside = -1
    if tokens <= INDEX_TOKENS:
        before = _rows_before(index, context, length, tokens, False)
        outside, inside = max(-1, (before - 1) * STEP), min(inside, before * STEP)
    else:
        reach = 1
        while inside - reach >= 0:
            if _agreeing(text, positions[inside - reach], context, length, tokens) < tokens:
                outside = inside - reach
                break
            inside -= reach
            reach *= 2
    while inside - outside > 1:
        middle = (outside + inside) // 2
        if _agreeing(text, positions[middle], context, length, tokens) < tokens:
            outside = middle
        else:
            inside = middle
    return inside


@loop
def _end(text: Ints, positions: Ints, index: Ints, context: Ints, length: int, tokens: int, end: int) -> int:
    """Behind the last entry that does; all before `end` do, if any. `outside` is the first known not to."""
    outside = positions.shape[0]
    if tokens <= INDEX_TOKENS:
        upto = _rows_before(index, context, length, tokens, True)
        if upto < index.shape[0]:
            outside = upto * STEP
        end = max(end, (upto - 1) * STEP + 1)
    else:
        reach = 1
        while end - 1 + reach < positions.shape[0]:
            if _agreeing(text, positions[end - 1 + reach], context, length, tokens) < tokens:
                outside = end - 1 + reach
                break
            end += reach
            reach *= 2
    while end < outside:
        middle = (end + outside) // 2
        if _agreeing(text, positions[middle], context, length, tokens) < tokens:
            outside = middle
        else:
            end = middle + 1
    return end


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
    text: Ints, voters: Ints, count: int, budget: int, least: float, best: float, draft: Ints, ratios: Doubles,
    scratch: Ints,
) -> tuple[int, float]:  # fmt: skip
    """(tokens, score) of the most frequent tokens behind the voters, as long as their probability is at least
    `least`, and as long as the score may still exceed the best. Voters that went on otherwise drop out."""
    drafted, score, prob = 0, 0.0, 1.0
    while drafted < budget:
        token, votes = _vote(text, voters, count, drafted + 1, scratch[0], scratch[1], scratch[2])
        if not votes:
            break
        ratio = votes / count
        prob *= ratio
        if prob < least or score + prob * (budget - drafted) < best * _NEARLY:
            break
        draft[drafted], ratios[drafted] = token, ratio
        drafted += 1
        score += prob
        kept = 0
        for at in range(count):
            if text[voters[at] + drafted] == token:
                voters[kept] = voters[at]
                kept += 1
        count = kept
    return drafted, score


@loop
def guess(
    words: Longs, context: Ints, length: int, longest: int, factor: float, offset: float, least: float, draft: Ints,
    ratios: Doubles, result: Longs,
) -> float:  # fmt: skip
    """The best draft behind the context, the text's last tokens in their order; its score, 0.0 without one.

    Contexts that occurred at the same places were followed by the same tokens: only the longest of them is looked at,
    and budgets shrink with it, so most of the shorter ones never are.
    """
    result[DRAFTED] = result[MATCHED] = 0
    text = carray(ints_at(words[TEXT_AT]), words[TEXT_WORDS])
    positions = carray(ints_at(words[POSITIONS_AT]), words[TOKENS])
    index = carray(ints_at(words[INDEX_AT]), (words[ROWS], INDEX_TOKENS))
    count = words[TOKENS]
    usable, most = 0, min(length, words[DEPTH])
    while usable < most and context[length - 1 - usable] >= 0:
        usable += 1
    best = 0.0
    if not usable or not count or longest <= 0:
        return best
    voters, scratch = np.empty(VOTERS, np.int32), np.empty((3, VOTERS), np.int32)
    trial, trial_ratios = np.empty(longest, np.int32), np.empty(longest)
    begin = end = _belongs(text, positions, index, context, length, usable)
    while True:
        matched = 0
        if begin > 0:
            matched = _agreeing(text, positions[begin - 1], context, length, usable)
        if end < count:
            matched = max(matched, _agreeing(text, positions[end], context, length, usable))
        budget = min(longest, int(matched * factor + offset + 1e-6))
        if not matched or budget <= best:
            break
        begin = _first(text, positions, index, context, length, matched, begin)
        end = _end(text, positions, index, context, length, matched, end)
        voting = _spread(positions, begin, end, voters)
        drafted, score = _walk(text, voters, voting, budget, least, best, trial, trial_ratios, scratch)
        if score > best:
            best = score
            result[DRAFTED], result[MATCHED] = drafted, matched
            for at in range(drafted):
                draft[at], ratios[at] = trial[at], trial_ratios[at]
    return best


@kept
def guess_alone(
    words: Longs, context: Ints, length: int, longest: int, factor: float, offset: float, least: float, draft: Ints,
    ratios: Doubles, result: Longs,
) -> float:  # fmt: skip
    """`guess`, to be called from Python."""
    return guess(words, context, length, longest, factor, offset, least, draft, ratios, result)  # type: ignore[no-any-return]
