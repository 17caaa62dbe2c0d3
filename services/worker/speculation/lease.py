"""A draft that outlives its step: a long continuation, kept on its sequence and used piece by piece while the text
agrees with it. Knows no sequence, no trust and no cost.

    text     . . . . . a b c|             position: where the continuation begins in the text
    tokens             a b c d e f g      at: how far the text has come along it
                             └─ left: the next drafts, no question needed

One that is a tree (tree.py) is cut down to what follows the text, as that comes: `at` stays 0.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Literal

from services.api.drafts import DraftItem
from services.worker.speculation import tree
from services.worker.speculation.tree import CHAIN

# No continuation has more tokens than this, those that were being verified when it was asked for not counted.
LONGEST_LEASE = 64
LONGEST_SOURCE = 64
# What branches must promise to bring, of the tokens that come without them.
BRANCHING = 0.02

# How a lease came: asked for while a step ran, or between two.
Kind = Literal["ahead", "asked"]


class Lease:
    __slots__ = (
        "at",
        "before",
        "brought",
        "certain",
        "chances",
        "excused",
        "grades",
        "kind",
        "match_length",
        "paid",
        "parents",
        "source",
        "tokens",
        "used",
    )

    def __init__(
        self,
        tokens: list[int],
        chances: list[float],
        source: str,
        match_length: int,
        kind: Kind,
        certain: int = 0,
        parents: list[int] = CHAIN,
    ) -> None:
        """The first `certain` tokens, a chain, aren't the proposer's: it was told them."""
        self.tokens = tokens
        self.parents = parents
        self.chances = chances
        self.source = source
        self.match_length = match_length
        self.kind = kind
        self.certain = certain
        self.at = 0
        # Whether a draft has come of it; what its drafts brought so far (seconds won, less those paid), and what the
        # one that is being verified costs.
        self.used = False
        self.brought = 0.0
        self.paid = 0.0
        # There was no choosing: that nothing came of it says nothing.
        self.excused = False
        # The lease that the draft being verified came from, if this one took its place meanwhile.
        self.before: Lease | None = None
        # What trust.py makes of the claims, token by token.
        self.grades: list[int] = []

    @property
    def left(self) -> int:
        """How far it goes beyond the text."""
        return tree.reach(self.tokens, self.parents) if self.parents else len(self.tokens) - self.at

    def next(self, count: int, at: int | None = None) -> list[int]:
        """Of a chain: those behind the text, or what it will be at `at`."""
        begin = self.at if at is None else at
        return self.tokens[begin : begin + count]

    def best(self, values: Items[float], most: int, reach: int) -> list[int]:
        """Of a tree: the places of the tokens of greatest value, the greatest first, if none is worth more than what it
        follows; and none further from the text than `reach`. Where branches bring little, only of its first way: they
        aren't free."""
        depths = tree.depths(len(self.tokens), self.parents)
        places = [place for place, depth in enumerate(depths) if depth <= reach]
        places.sort(key=lambda place: -values[place])
        places = places[:most]
        chain = tree.first_places(self.parents)[: min(most, reach)]
        alone = sum(values[place] for place in chain)
        return places if sum(values[place] for place in places) - alone > BRANCHING * (1.0 + alone) else chain

    def cumulated(self, chances: Items[float]) -> list[float]:
        """Of a tree: the chance of each token that it and all it follows stand."""
        found: list[float] = []
        for chance, parent in zip(chances, self.parents, strict=True):
            found.append(chance if parent < 0 else found[parent] * chance)
        return found

    def claims(self, count: int) -> float:
        """Of a tree: how many of its `count` likeliest tokens stand, as it says."""
        return sum(sorted(self.cumulated(self.chances), reverse=True)[:count])

    def goes_on_with(self, tokens: list[int]) -> bool:
        """Of a chain: what `follow` will say."""
        end = self.at + len(tokens)
        return end < len(self.tokens) and self.tokens[self.at : end] == tokens

    def follow(self, tokens: list[int]) -> bool:
        """The text goes on with these. Whether the lease lives on: no disagreement, and something is left."""
        if self.parents:
            return self._follow(tokens)
        begin = self.at
        end = begin + len(tokens)
        mine = self.tokens[begin:end]
        if mine == tokens:
            self.at = end
            return end < len(self.tokens)
        for mine_token, token in zip(mine, tokens, strict=False):
            if mine_token != token:
                break
            self.at += 1
        return False

    def _follow(self, tokens: list[int]) -> bool:
        path = tree.walk(self.tokens, self.parents, tokens)
        if len(path) < len(tokens):
            return False
        if path:
            self._keep(tree.below(len(self.tokens), self.parents, path[-1]), path[-1])
            self.certain = max(0, self.certain - len(path))
        return bool(self.tokens)

    def _keep(self, places: list[int], root: int) -> None:
        new = {root: -1} | {place: index for index, place in enumerate(places)}
        self.parents = tree.simplified([new[self.parents[place]] for place in places])
        self.tokens = [self.tokens[place] for place in places]
        self.chances = [self.chances[place] for place in places]
        self.grades = [self.grades[place] for place in places] if self.grades else []

    def judged(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """Of a tree, when the text goes on with these: the grades of the claims that came true, and of those beside
        them that didn't."""
        path = tree.walk(self.tokens, self.parents, tokens)
        compared = {-1, *path} if len(path) < len(tokens) else {-1, *path[:-1]}
        told = [place for place in range(self.certain, len(self.tokens)) if self.parents[place] in compared]
        return (
            [self.grades[place] for place in told if place in path],
            [self.grades[place] for place in told if place not in path],
        )


def lease_of(item: DraftItem, ahead: Items[int], text: list[int], kind: Kind) -> Lease | None:
    """What of a draft is of use behind this text; `ahead`: the tokens it was asked to follow, behind its question's
    text. None when the text has gone another way or past its end, or hasn't come to where it begins."""
    begins = item.committed - len(ahead)
    passed = len(text) - begins
    if begins < 0 or passed < 0:
        return None
    guessed = item.tokens[:LONGEST_LEASE]
    tokens = [*ahead, *guessed] if ahead else guessed
    certain = len(ahead)
    parents = tree.simplified(item.parents[:LONGEST_LEASE]) if item.parents else CHAIN
    if not parents and (passed >= len(tokens) or (passed and text[begins:] != tokens[:passed])):
        return None
    # What can't be a chance is none.
    chances = [chance if 0.0 <= chance <= 1.0 else 0.0 for chance in item.chances[: len(guessed)]]
    if len(chances) != len(guessed):
        chances = [_chance_of(item.match_length)] * len(guessed)
    if certain:
        chances = [1.0] * certain + chances
    if parents:
        parents = [*range(-1, certain - 1), *(parent + certain for parent in parents)]
    lease = Lease(tokens, chances, item.source[:LONGEST_SOURCE], item.match_length, kind, certain, parents)
    if not parents:
        lease.at = passed
        return lease
    return lease if lease.follow(text[begins:]) else None


def _chance_of(match_length: int) -> float:
    """A claim for a proposer that makes none: the longer what it matched, the surer. What it is worth is learned."""
    return 1.0 - 0.5 / (1.0 + 0.25 * max(0, match_length))
