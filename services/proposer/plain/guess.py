"""What a plain drafter finds, and the rule by which drafts from counts end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from services.api.settings import Settings


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens, each with the share of its context's occurrences that it followed; how many tokens of context matched."""

    tokens: list[int] = field(default_factory=list)
    shares: Sequence[float] = ()
    matched: int = 0
    source: str = ""

    @property
    def score(self) -> float:
        """How many tokens are expected to be accepted."""
        return float(sum(accumulate(self.shares, mul)))


@dataclass(frozen=True, slots=True)
class DraftRule:
    """A draft after a context of n tokens has at most n * factor + offset tokens, and ends where its probability falls
    below `least`."""

    factor: float = 1.0
    offset: float = 0.0
    least: float = 0.1

    @classmethod
    def of(cls, settings: Settings) -> DraftRule:
        return cls(
            settings.suffix_decoding_max_spec_factor,
            settings.suffix_decoding_max_spec_offset,
            settings.suffix_decoding_min_token_prob,
        )

    def budget(self, matched: int, longest: int) -> int:
        return min(longest, int(matched * self.factor + self.offset + 1e-6))
