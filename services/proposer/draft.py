"""A draft: a guess for the tokens that follow, and where it came from. A value; it knows no proposer."""

from __future__ import annotations

from typing import NamedTuple

# No proposer guesses further than this, whatever it is asked for.
MAX_DRAFT_TOKENS = 64


class Draft(NamedTuple):
    """`parents` is empty for a chain; for a tree, parents[i] is the index of the token before tokens[i],
    -1 at the root. `probs` None means a certain (one-hot) draft. `source` and `match_length` say who guessed
    and on how much evidence; chances[i] is how probable it finds that tokens[i] stands when all before it do.
    Not to be changed: drafts without a guess share their lists."""

    tokens: list[int] = []  # noqa: RUF012
    source: str = ""
    match_length: int = 0
    parents: list[int] = []  # noqa: RUF012
    probs: list[float] | None = None
    chances: list[float] = []  # noqa: RUF012


EMPTY = Draft()
