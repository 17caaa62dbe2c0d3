"""The place in a prediction that an answer has reached.

A pointer starts at 0 and advances with the answer, also past a token that differs, which was probably replaced. Until
GRAM_TOKENS agree again, the answer's last GRAM_TOKENS are looked up in the prediction, and the best place is taken:

    predicted   the red fox and the dog and the cat
    answer      the old fox, and the |                  the places behind "and the" are before dog and before cat

At or behind the pointer is better than before it, then the longer agreement, then what is nearer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

GRAM_TOKENS = 3
# Tokens that are compared at a place, and places.
MAX_COMPARED, MAX_PLACES = 32, 64
# A prediction has no counts: its share says whether the place in it is known, or only assumed.
AGREED_SHARE, ASSUMED_SHARE = 0.95, 0.35


@dataclass(slots=True)
class PredictedPlace:
    """The place in a prediction that the answer has reached. `agreed`: how many tokens in a row agree up to the
    pointer; `lost`: the pointer is only assumed."""

    tokens: list[int]
    pointer: int = 0
    agreed: int = 0
    lost: bool = False
    # How much of the answer has been read.
    read: int = 0
    # The places behind each GRAM_TOKENS, the last one first.
    places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.places:
            self.places = defaultdict(list)
            for place in range(len(self.tokens), GRAM_TOKENS - 1, -1):
                self.places[tuple(self.tokens[place - GRAM_TOKENS : place])].append(place)

    def follow(self, answer: Sequence[int]) -> None:
        for at in range(self.read, len(answer)):
            if self.pointer < len(self.tokens) and self.tokens[self.pointer] == answer[at]:
                self.agreed += 1
            else:
                self.agreed, self.lost = 0, True
            self.pointer += 1
            if self.agreed >= GRAM_TOKENS:
                self.lost = False
            elif self.lost:
                self._align(answer[max(0, at + 1 - MAX_COMPARED) : at + 1])
        self.read = len(answer)

    def _align(self, last: Sequence[int]) -> None:
        """Moves the pointer to the best place for the answer's last tokens, if the last GRAM_TOKENS are anywhere."""
        found = self.places.get(tuple(last[-GRAM_TOKENS:]), []) if len(last) >= GRAM_TOKENS else []
        best = max(islice(found, MAX_PLACES), key=lambda place: self._rank(place, last), default=None)
        if best is not None:
            self.pointer, self.agreed, self.lost = best, self._agreeing(best, last), False

    def _rank(self, place: int, last: Sequence[int]) -> tuple[bool, int, int]:
        return place >= self.pointer, self._agreeing(place, last), -abs(place - self.pointer)

    def _agreeing(self, place: int, last: Sequence[int]) -> int:
        most = min(place, len(last))
        return next((at for at in range(most) if self.tokens[place - 1 - at] != last[-1 - at]), most)
