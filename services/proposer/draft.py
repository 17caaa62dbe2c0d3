"""A draft: a guess for the tokens that follow, and where it came from; and those of a batch. Values; they know no
proposer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import msgspec

from services.api.drafts import cut, laid_out

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


class Guesses(Sequence[Draft]):
    """The drafts of a batch as they lie in memory after a compiled call, tokens and chances one behind the other. One
    becomes a Draft when it is looked at; on their way to a target none need be."""

    __slots__ = ("chances", "lengths", "match_lengths", "parents", "sources", "tokens")

    def __init__(
        self, lengths: list[int], sources: list[str], match_lengths: list[int], tokens: bytes, chances: bytes,
        parents: list[list[int]] | None = None,
    ) -> None:  # fmt: skip
        """`parents`: None where all are chains."""
        self.lengths, self.sources, self.match_lengths = lengths, sources, match_lengths
        self.tokens, self.chances, self.parents = tokens, chances, parents

    @classmethod
    def of(cls, drafts: Sequence[Draft]) -> Guesses:
        if isinstance(drafts, cls):
            return drafts
        return cls(
            [len(draft.tokens) for draft in drafts],
            [draft.source for draft in drafts],
            [draft.match_length for draft in drafts],
            *laid_out(drafts),
            [draft.parents for draft in drafts] if any(draft.parents for draft in drafts) else None,
        )

    def all_parents(self) -> list[list[int]]:
        return self.parents if self.parents is not None else [_CHAIN] * len(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Draft]:
        drafts = cut(self.tokens, self.chances, self.lengths)
        for (tokens, chances), source, match_length, parents in zip(
            drafts, self.sources, self.match_lengths, self.all_parents(), strict=True
        ):
            yield Draft(tokens, source, match_length, parents, None, chances) if tokens else EMPTY

    @overload
    def __getitem__(self, at: int) -> Draft: ...
    @overload
    def __getitem__(self, at: slice) -> list[Draft]: ...
    def __getitem__(self, at: Any) -> Any:
        return list(self)[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


_CHAIN: list[int] = []
