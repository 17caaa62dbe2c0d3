"""What an answer says of its prompt: its text (`echo`), and the log-probabilities of its tokens.

    ids     0  1  2  3  4 | 5  6  7         the first has no log-probability: nothing is before it
            told: `known` |

Text and log-probabilities are told as they come, so a long prompt is never held whole. Special tokens are written by
their names, but for those that the tokenizer has put before the caller's text. Knows no sockets, no JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.api.prompt_columns import PromptColumns
from services.api.prompt_logprobs import TOKENS_IN_MESSAGE, PromptLogprob, unpack
from services.streamer.choice.delivery import Delivery, Piece


class Echo:
    """Of one choice. `scored`: the worker is asked for log-probabilities."""

    __slots__ = ("_added", "_delivery", "_ids", "_logprobs", "characters", "known", "scored")

    def __init__(self, ids: list[int], text: Delivery | None, *, added: int = 0, scored: bool) -> None:
        """`text` is None if it isn't wanted; the first `added` tokens are no part of it."""
        self.scored = scored
        self.known = 0
        self.characters = 0
        self._ids = ids
        self._delivery = text
        self._added = added
        # Of tokens that wait for the rest of their last character.
        self._logprobs: list[PromptLogprob | None] = []

    @property
    def complete(self) -> bool:
        return self.known == len(self._ids)

    def take(self, columns: PromptColumns | None) -> Iterator[Piece]:
        """What can be told now that this has come; None: something else. Raises ValueError for what doesn't fit."""
        new = self._new(columns)
        for first in range(0, len(new), TOKENS_IN_MESSAGE):
            yield self._tell(new[first : first + TOKENS_IN_MESSAGE])

    def _new(self, columns: PromptColumns | None) -> list[PromptLogprob | None]:
        """An entry for each token that can be told."""
        left = len(self._ids) - self.known
        if not self.scored:
            return [None] * left
        new: list[PromptLogprob | None] = [] if self.known else [None]
        if columns is not None:
            # A later attempt begins at the beginning.
            behind = self.known + len(new) - columns.begin
            if behind < 0:
                raise ValueError(f"the prompt's log-probabilities before {columns.begin} are missing")
            new += unpack(columns)[behind:]
        if len(new) > left:
            raise ValueError("log-probabilities of more tokens than the prompt has")
        return new

    def _tell(self, logprobs: list[PromptLogprob | None]) -> Piece:
        begin, self.known = self.known, self.known + len(logprobs)
        ids = self._ids[begin : self.known]
        if self._delivery is None:
            return Piece("", ids, [*logprobs], [0] * len(ids), of_prompt=True)
        self._logprobs += logprobs
        lead = ids[: max(0, self._added - begin)]
        pieces = [self._delivery.push(ids[len(lead) :], None)]
        if self.complete:
            pieces.append(self._delivery.flush())
        told = Piece("".join(piece.text for piece in pieces), lead, begin=self.characters, of_prompt=True)
        told.offsets += [0] * len(lead)
        for piece in pieces:
            told.ids += piece.ids
            told.offsets += piece.offsets
        self.characters += len(told.text)
        told.logprobs += self._logprobs[: len(told.ids)]
        del self._logprobs[: len(told.ids)]
        return told
