"""A draft: a guess for the tokens that follow, and where it came from. A value; it knows no proposer."""

from __future__ import annotations

import msgspec

# No proposer guesses further than this, whatever it is asked for.
MAX_DRAFT_TOKENS = 64


class Draft(msgspec.Struct, frozen=True, gc=False):
    """`parents` is empty for a chain; for a tree, parents[i] is the index of the token before tokens[i],
    -1 at the root. `probs` None means a certain (one-hot) draft. `source` and `match_length` say who guessed
    and on how much evidence; chances[i] is how probable it finds that tokens[i] stands when all before it do.
    Not to be changed: all drafts without a guess are one."""

    tokens: list[int] = []
    source: str = ""
    match_length: int = 0
    parents: list[int] = []
    probs: list[float] | None = None
    chances: list[float] = []


EMPTY = Draft()
