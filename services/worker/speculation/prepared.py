"""A draft kept for its sequence and used piece by piece, as long as the text agrees with it.

    text     . . . . . a b c|             `at`: how far the text has come along the draft
    tokens             a b c d e f g
                             └─ left: the next drafts, without another request

Of a tree only the part that follows the text is kept, and `at` stays 0. Of a draft that was merged of a text draft and
one of the head (merging.py) each token has a source. Knows no sequence and no cost.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Literal

from services.api import draft_tree as tree
from services.api.drafter import MAX_DRAFT_TOKENS, NOTHING, Draft

LONGEST_SOURCE = 64
# In `sources`. No name: a proposer chooses those of its own.
HEAD = None
# Use branches only if they are expected to add this share of the tokens of the first path.
BRANCHING = 0.02

# Asked for while a step ran; asked for and waited for between steps; or made by the worker's head.
Way = Literal["ahead", "waited", "head"]


class Prepared:
    __slots__ = ("at", "brought", "buckets", "certain", "confidence", "cost", "excused", "head_source", "match_length",
                 "parents", "probs", "source", "sources", "tokens", "used", "way")  # fmt: skip

    def __init__(self, draft: Draft, way: Way, certain: int = 0) -> None:
        """The first `certain` tokens, a chain, are not guesses: the drafter was given them as `ahead`."""
        self.tokens = draft.tokens
        self.parents = draft.parents
        self.confidence = draft.confidence
        self.probs = draft.probs
        self.source = draft.source
        # Of a merged draft: by token, the source of a text draft, or HEAD; and the name of the worker's head.
        self.sources: list[str | None] = []
        self.head_source = ""
        self.match_length = draft.match_length
        self.way = way
        self.certain = certain
        self.at = 0
        # Whether any part was verified; seconds saved so far, less seconds spent on rows; and the cost of the rows that
        # are being verified.
        self.used = False
        self.brought = 0.0
        self.cost = 0.0
        # There was no choice: an unused draft says nothing about the benefit.
        self.excused = False
        # Confidence buckets of its tokens (acceptance.py).
        self.buckets: list[int] = []

    @property
    def left(self) -> int:
        """Tokens left beyond the text; for a tree, its depth."""
        return max(tree.depths(len(self.tokens), self.parents), default=0) if self.parents else (
            len(self.tokens) - self.at
        )

    def chain(self, count: int) -> Draft:
        """The next tokens of a chain."""
        begin, end = self.at, self.at + count
        tokens = self.tokens[begin:end]
        probs = None if self.probs is None else self.probs[begin:end]
        source = self._source_of(range(begin, begin + len(tokens))) if self.sources else self.source
        return Draft(tokens, source, self.match_length, NOTHING, self.confidence[begin:end], probs)

    def branched(self, places: Items[int]) -> Draft:
        """A tree of the tokens at these places."""
        tokens, parents = tree.chosen(self.tokens, self.parents, places)
        confidence = [self.confidence[place] for place in places]
        return Draft(tokens, self._source_of(places), self.match_length, parents, confidence)

    def _source_of(self, places: Items[int]) -> str:
        """All of them, the head first."""
        if not self.sources:
            return self.source
        found = {self.sources[place] for place in places}
        return "+".join([self.head_source] * (HEAD in found) + sorted(each for each in found if each is not HEAD))

    def of_text(self, places: Items[int]) -> int:
        """How many of the tokens at these places the worker's head did not draft."""
        if self.sources:
            return sum(self.sources[place] is not HEAD for place in places)
        return 0 if self.way == "head" else len(places)

    def first_path(self) -> Items[int]:
        """The places of what is left of a chain, or of the first path of a tree."""
        return tree.first_places(self.parents) if self.parents else range(self.at, len(self.tokens))

    def best(self, values: Items[float], most: int, reach: int) -> list[int]:
        """For a tree: the places of the `most` tokens of greatest value, the greatest first, none deeper than `reach`.
        No value may exceed that of its parent. If branches add little, only the first path: they aren't free."""
        depths = tree.depths(len(self.tokens), self.parents)
        places = [place for place, depth in enumerate(depths) if depth <= reach]
        places.sort(key=lambda place: -values[place])
        places = places[:most]
        first = tree.first_places(self.parents)[: min(most, reach)]
        alone = sum(values[place] for place in first)
        return places if sum(values[place] for place in places) - alone > BRANCHING * (1.0 + alone) else first

    def cumulated(self, rates: Items[float]) -> list[float]:
        """For a tree: the probability of each token that it and all its ancestors are accepted."""
        found: list[float] = []
        for rate, parent in zip(rates, self.parents, strict=True):
            found.append(rate if parent < 0 else found[parent] * rate)
        return found

    def follow(self, tokens: list[int], path: Items[int] | None = None) -> bool:
        """The text continues with these tokens, which agree with those on the path. Returns whether all of them do, and
        there are tokens left."""
        path = self.path(tokens) if path is None else path
        if not self.parents:
            self.at += len(path)
            return len(path) == len(tokens) and self.at < len(self.tokens)
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
        self.confidence = [self.confidence[place] for place in places]
        self.buckets = [self.buckets[place] for place in places] if self.buckets else []
        self.sources = [self.sources[place] for place in places] if self.sources else []

    def path(self, tokens: list[int]) -> Items[int]:
        """The places of what agrees with these tokens of the text."""
        if self.parents:
            return tree.walk(self.tokens, self.parents, tokens)
        return range(self.at, self.at + _common(self.tokens[self.at : self.at + len(tokens)], tokens))

    def compared(self, tokens: list[int], path: Items[int] | None = None) -> tuple[Items[int], Items[int]]:
        """As in `follow`: the places of guessed tokens that were right, and of those that were wrong, in a tree the
        siblings of the right ones."""
        path = self.path(tokens) if path is None else path
        if not self.parents:
            at = self.at + len(path)
            failed = len(path) < len(tokens) and self.certain <= at < len(self.tokens)
            return range(max(self.at, self.certain), at), (at,) if failed else ()
        parents = {-1, *path} if len(path) < len(tokens) else {-1, *path[:-1]}
        seen = [place for place in range(self.certain, len(self.tokens)) if self.parents[place] in parents]
        return [place for place in seen if place in path], [place for place in seen if place not in path]


def _common(drafted: list[int], said: list[int]) -> int:
    """How many tokens are the same from the beginning on."""
    most = min(len(drafted), len(said))
    if drafted[:most] == said[:most]:
        return most
    return next(place for place in range(most) if drafted[place] != said[place])


def prepare(draft: Draft, begins: int, ahead: list[int], text: list[int], way: Way) -> Prepared | None:
    """The part of a draft that is of use after this text. It was asked for when the text had `begins` tokens, to follow
    them and `ahead`. None if the text has diverged from it, is past its end, or is shorter than `begins`."""
    passed = len(text) - begins
    if begins < 0 or passed < 0:
        return None
    guessed = draft.tokens[:MAX_DRAFT_TOKENS]
    certain = len(ahead)
    tokens = [*ahead, *guessed] if ahead else guessed
    parents = tree.simplified(draft.parents[:MAX_DRAFT_TOKENS]) if draft.parents else []
    if not parents and (passed >= len(tokens) or (passed and text[begins:] != tokens[:passed])):
        return None
    # Invalid probabilities count as 0.
    confidence = [each if 0.0 <= each <= 1.0 else 0.0 for each in draft.confidence[: len(guessed)]]
    if len(confidence) != len(guessed):
        confidence = [_confidence_of(draft.match_length)] * len(guessed)
    if certain:
        confidence = [1.0] * certain + confidence
    if parents:
        parents = [*range(-1, certain - 1), *(parent + certain for parent in parents)]
    # Only if the tokens were drawn after exactly this text: tokens asked for ahead were drawn after a guess. And only a
    # chain's: what is left of a tree would have the rows of other tokens.
    probs = draft.probs if not ahead and not passed and not draft.parents else None
    prepared = Prepared(
        Draft(tokens, draft.source[:LONGEST_SOURCE], draft.match_length, parents, confidence, probs), way, certain
    )
    if not parents:
        prepared.at = passed
        return prepared
    return prepared if prepared.follow(text[begins:]) else None


def _confidence_of(match_length: int) -> float:
    """For a drafter that gives none: it grows with the match length. Its bucket's acceptance rate is measured."""
    return 1.0 - 0.5 / (1.0 + 0.25 * max(0, match_length))
