"""A draft that outlives its step: a long continuation, kept on its sequence and used piece by piece while the text
agrees with it. Knows no sequence, no trust and no cost.

    text     . . . . . a b c|             position: where the continuation begins in the text
    tokens             a b c d e f g      at: how far the text has come along it
                             └─ left: the next drafts, no question needed
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Literal

from services.messages import DraftItem

# No continuation is longer than this, the tokens that were being verified when it was asked for not counted.
LONGEST_LEASE = 64
LONGEST_SOURCE = 64

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
        "source",
        "tokens",
        "used",
    )

    def __init__(
        self, tokens: list[int], chances: list[float], source: str, match_length: int, kind: Kind, certain: int = 0
    ) -> None:
        """The first `certain` tokens aren't the proposer's: it was told them."""
        self.tokens = tokens
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
        return len(self.tokens) - self.at

    def next(self, count: int) -> list[int]:
        return self.tokens[self.at : self.at + count]

    def follow(self, tokens: list[int]) -> bool:
        """The text goes on with these. Whether the lease lives on: no disagreement, and something is left."""
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


def lease_of(item: DraftItem, ahead: Items[int], text: list[int], kind: Kind) -> Lease | None:
    """What of a draft is of use behind this text; `ahead`: the tokens it was asked to follow, behind its question's
    text. None when the text has gone another way or past its end, or hasn't come to where it begins."""
    begins = item.committed - len(ahead)
    passed = len(text) - begins
    if begins < 0 or passed < 0:
        return None
    guessed = item.tokens[:LONGEST_LEASE]
    tokens = [*ahead, *guessed] if ahead else guessed
    if passed >= len(tokens) or (passed and text[begins:] != tokens[:passed]):
        return None
    # What can't be a chance is none.
    chances = [chance if 0.0 <= chance <= 1.0 else 0.0 for chance in item.chances[: len(guessed)]]
    if len(chances) != len(guessed):
        chances = [_chance_of(item.match_length)] * len(guessed)
    certain = len(ahead)
    lease = Lease(tokens, [1.0] * certain + chances, item.source[:LONGEST_SOURCE], item.match_length, kind, certain)
    lease.at = passed
    return lease


def _chance_of(match_length: int) -> float:
    """A claim for a proposer that makes none: the longer what it matched, the surer. What it is worth is learned."""
    return 1.0 - 0.5 / (1.0 + 0.25 * max(0, match_length))
