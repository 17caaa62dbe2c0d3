"""Drafts from a segment, in plain Python: what followed the context's occurrences in its texts. segments/loops.py
is the same, compiled, and says how a segment is laid out.

    text       - a b c a b d -             the places of "b" are 2 and 5; "ab" has the same ones
    places     1 4  2 5  3  6              sorted by the tokens up to them, read backwards
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from services.proposer.native import Ints
from services.proposer.plain.guess import DraftRule, Guess
from services.proposer.segments.loops import SEPARATOR, VOTERS
from services.proposer.segments.segment import Segment


def search(segment: Segment, context: Sequence[int], longest: int, rule: DraftRule) -> Guess:
    """The best draft behind the context, of all lengths of it that occur. All occurrences of a length are side by side
    in the sorted places, around the one where the whole context belongs."""
    text, places = segment.sections()
    wanted = _backwards(context, segment.depth)

    def key(place: int, length: int) -> list[int]:
        read: list[int] = text[max(0, place - length + 1) : place + 1][::-1].tolist()
        return read

    def agreeing(place: int) -> int:
        pairs = zip(key(place, len(wanted)), wanted, strict=False)
        return next((at for at, (one, other) in enumerate(pairs) if one != other), len(wanted))

    best = Guess()
    begin = end = bisect_left(places, wanted, key=lambda place: key(place, len(wanted)))
    while True:
        matched = max(map(agreeing, [*places[max(0, begin - 1) : begin], *places[end : end + 1]]), default=0)
        budget = rule.budget(matched, longest)
        if not matched or budget <= best.score:
            return best
        shorter = wanted[:matched]
        begin = bisect_left(places, shorter, hi=begin, key=lambda place: key(place, matched))
        end = bisect_right(places, shorter, lo=end, key=lambda place: key(place, matched))
        guess = _walk(text, _voters(places, begin, end), budget, rule.least)
        if guess.score > best.score:
            best = Guess(guess.tokens, guess.shares, matched)


def _backwards(context: Sequence[int], depth: int) -> list[int]:
    """The last tokens of the context, the last one first, as far as they are token ids."""
    last = list(context[-depth:])[::-1]
    return last[: next((at for at, token in enumerate(last) if token < 0), len(last))]


def _voters(places: Ints, begin: int, end: int) -> list[int]:
    """The occurrences that are counted: all, or VOTERS of them."""
    size = end - begin
    chosen = range(size) if size <= VOTERS else ((2 * at + 1) * size // (2 * VOTERS) for at in range(VOTERS))
    return [int(places[begin + at]) for at in chosen]


def _walk(text: Ints, voters: list[int], budget: int, least: float) -> Guess:
    """The most frequent tokens behind the voters, of equals the last in the text, while all of them are as probable as
    `least`. Voters that went on otherwise drop out; ends of texts don't vote."""
    tokens: list[int] = []
    shares: list[float] = []
    probability = 1.0
    while len(tokens) < budget:
        ahead = len(tokens) + 1
        votes: dict[int, tuple[int, int]] = {}
        for place in voters:
            token = int(text[place + ahead])
            if token != SEPARATOR:
                count, last = votes.get(token, (0, 0))
                votes[token] = count + 1, max(last, place)
        if not votes:
            break
        token = max(votes, key=votes.__getitem__)
        share = votes[token][0] / len(voters)
        probability *= share
        if probability < least:
            break
        tokens.append(token)
        shares.append(share)
        voters = [place for place in voters if text[place + ahead] == token]
    return Guess(tokens, shares)
