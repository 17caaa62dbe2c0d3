"""Log-probabilities of a prompt as they travel from a worker to a streamer: in columns (PromptColumns), cut into
messages, and back.

Columns from outside are data: those that don't fit each other raise ValueError. No torch.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

from services.api.messages import TokenLogprob, TopToken
from services.api.prompt_columns import PromptColumns

assert sys.byteorder == "little", "numbers travel as they are in memory"

# Tokens of a prompt in a message: with the most log-probabilities 21 kB, and 2 ms of the streamer's event loop.
TOKENS_IN_MESSAGE = 128
_BYTES = 4  # of a number


class PromptLogprob(TokenLogprob, frozen=True, gc=False):
    """Of one token; `rank` 1 is the most probable id."""

    rank: int = 0


def tokens_in(columns: PromptColumns) -> int:
    return len(columns.logprobs) // _BYTES


def parts(columns: PromptColumns, most: int = TOKENS_IN_MESSAGE) -> Iterator[PromptColumns]:
    """The same in parts of at most `most` tokens."""
    for first in range(0, tokens_in(columns), most):
        own = slice(first * _BYTES, (first + most) * _BYTES)
        top = slice(own.start * columns.count, own.stop * columns.count)
        yield PromptColumns(
            begin=columns.begin + first,
            count=columns.count,
            logprobs=columns.logprobs[own],
            ranks=columns.ranks[own],
            top_ids=columns.top_ids[top],
            top_logprobs=columns.top_logprobs[top],
        )


def pack(begin: int, tokens: list[PromptLogprob]) -> PromptColumns:
    """All with the same number of most probable ids."""
    count = len(tokens[0].top) if tokens else 0
    assert all(len(token.top) == count for token in tokens)
    return PromptColumns(
        begin=begin,
        count=count,
        logprobs=array("f", [token.logprob for token in tokens]).tobytes(),
        ranks=array("i", [token.rank for token in tokens]).tobytes(),
        top_ids=array("i", [top.id for token in tokens for top in token.top]).tobytes(),
        top_logprobs=array("f", [top.logprob for token in tokens for top in token.top]).tobytes(),
    )


def unpack(columns: PromptColumns) -> list[PromptLogprob]:
    """Raises ValueError when the columns don't fit each other."""
    number, count = tokens_in(columns), columns.count
    if columns.begin < 0 or count < 0 or len(columns.logprobs) != number * _BYTES:
        raise ValueError("log-probabilities of a prompt without a place")
    if not len(columns.ranks) == len(columns.logprobs):
        raise ValueError("log-probabilities and ranks differ in length")
    if not len(columns.top_ids) == len(columns.top_logprobs) == number * count * _BYTES:
        raise ValueError("most probable ids of another number of tokens")
    ids, values = array("i", columns.top_ids).tolist(), array("f", columns.top_logprobs).tolist()
    top = [TopToken(id=token, logprob=value) for token, value in zip(ids, values, strict=True)]
    own = zip(array("f", columns.logprobs).tolist(), array("i", columns.ranks).tolist(), strict=True)
    return [
        PromptLogprob(logprob=value, top=top[place * count : (place + 1) * count], rank=rank)
        for place, (value, rank) in enumerate(own)
    ]
