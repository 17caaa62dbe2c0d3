"""Text to token ids and back, with the model's own tokenizer.json. Knows no templates and no messages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from mesh.codec import MAX_BODY
from models.errors import ModelError
from services.tokenizer.text_bound import bound_of

# One prompt at a time per thread: the library's own pool would only compete with the model for cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


# An id takes 3 bytes in an answer, or more; the few that take less are those of single bytes.
MOST_TOKENS = MAX_BODY // 3
# To encode a text takes some 300 bytes of memory for each character: what is longer than two pieces is counted piece by
# piece before, and no further than its limit.
PIECE = 1 << 18  # characters
# Tokens that a cut may add, and more.
MORE_BY_CUT = 64


class TooLong(Exception):
    """More tokens than may be; of a text that was not encoded, at least `tokens`."""

    def __init__(self, tokens: int, limit: int, *, at_least: bool = False) -> None:
        many = f"at least {tokens}" if at_least else f"{tokens}"
        super().__init__(f"the prompt has {many} tokens, the limit is {limit}")
        self.tokens = tokens
        self.limit = limit


class Encoder:
    """Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Some files carry the truncation and padding of their training: a server must not cut silently.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self._bound = bound_of(tokenizer)

    @classmethod
    def from_folder(cls, folder: Path) -> Encoder:
        """Raises ModelError for a file that is no tokenizer."""
        path = folder / "tokenizer.json"
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises nothing more particular
            raise ModelError(f"{path} holds no tokenizer: {error}", "fetch the file again") from error

    def check_length(self, text: str, max_tokens: int = 0) -> None:
        """Raises TooLong for a text that is too long whatever its tokens are. Takes milliseconds for megabytes."""
        limit = _limit(max_tokens)
        if self._bound is not None and (least := self._bound.least_tokens(text)) > limit:
            raise TooLong(least, limit, at_least=True)

    def encode(self, text: str, *, add_special_tokens: bool, max_tokens: int = 0) -> list[int]:
        """Raises TooLong when there are more than `max_tokens` (0: as many as an answer can hold). A text is encoded
        in one piece: cut, it would have other tokens at the cuts."""
        if len(text) > 2 * PIECE:
            self._count_pieces(text, _limit(max_tokens))
        # The batch call releases the interpreter lock, the single one doesn't; no offsets are computed.
        encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        # Counted before the ids become a list, which takes the lock.
        if len(encodings[0]) > (limit := _limit(max_tokens)):
            raise TooLong(len(encodings[0]), limit)
        token_ids: list[int] = encodings[0].ids
        return token_ids

    def _count_pieces(self, text: str, limit: int) -> None:
        """Raises TooLong."""
        least = 0
        for begin in range(0, len(text), PIECE):
            piece = text[begin : begin + PIECE]
            encodings = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            least += len(encodings[0]) - MORE_BY_CUT
            if least > limit:
                raise TooLong(least, limit, at_least=True)

    def encode_words(self, words: Sequence[str]) -> list[list[list[int]]]:
        """Of each word the ids it may have in a text: as it is, and with a space before it where that gives others.

        Vocabularies hold most words twice, and a text has them mostly with the space. A word without ids has none.
        """
        texts = [text for word in words for text in (word, f" {word}")]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [list(encoding.ids) for encoding in encodings]
        return [_distinct(ids[place : place + 2]) for place in range(0, len(ids), 2)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Raises ValueError for an id outside the vocabulary: the library would leave it out silently."""
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(f"token id {token_id} is outside the vocabulary of {self.vocab_size}")
        # Here, too, only the batch call releases the interpreter lock.
        texts: list[str] = self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return texts[0]


def _limit(max_tokens: int) -> int:
    return min(max_tokens or MOST_TOKENS, MOST_TOKENS)


def _distinct(spellings: list[list[int]]) -> list[list[int]]:
    """The second says nothing new where it ends like the first: whatever forbids that forbids it, too."""
    bare, spaced = spellings
    if not bare:
        return []
    return [bare] if spaced[-len(bare) :] == bare else [bare, spaced]
