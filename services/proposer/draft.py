"""A draft: a guess for the tokens that follow, and where it came from. A value; it knows no proposer."""

from __future__ import annotations

from dataclasses import dataclass, field

# No proposer guesses further than this, whatever it is asked for.
MAX_DRAFT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Draft:
    """`parents` is empty for a chain; for a tree, parents[i] is the index of the token before tokens[i],
    -1 at the root. `probs` None means a certain (one-hot) draft. `source` and `match_length` say who guessed
    and on how much evidence; chances[i] is how probable it finds that tokens[i] stands when all before it do."""

    tokens: list[int] = field(default_factory=list)
    source: str = ""
    match_length: int = 0
    parents: list[int] = field(default_factory=list)
    probs: list[float] | None = None
    chances: list[float] = field(default_factory=list)


EMPTY = Draft()
