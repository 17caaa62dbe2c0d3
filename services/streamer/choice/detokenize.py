"""Token ids to text, a few at a time, never emitting half a character.

Two detokenizers behind one seam: `ByteDetokenizer` for byte-level BPE (a table of bytes per id and an
incremental UTF-8 decoder: exact and fast), `WindowDetokenizer` for every other kind (decodes a small window
again). What either emits in all, with the flush, equals one decode of all ids (except that older tokenizers
replace a malformed run of bytes one by one only when they see it whole). Knows no stop strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Set
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import orjson
from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
# A window that ends in the middle of a character grows; past this many tokens it is emitted as it is.
LONGEST_UNFINISHED = 64
TOKENS_OF_AN_END = 32


class Detokenizer(Protocol):
    """Of one choice. `feed` gives the text that has become whole; `unfinished` says that bytes wait for more."""

    @property
    def unfinished(self) -> bool: ...

    def feed(self, ids: list[int]) -> str: ...

    def flush(self) -> str: ...


class Vocabulary:
    """The contents of a tokenizer.json. One in a process; makes the detokenizers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        description = orjson.loads(tokenizer.to_str())
        self.byte_level = (description.get("decoder") or {}).get("type") == "ByteLevel"
        added = description.get("added_tokens", [])
        # Grammars know each of these by its id alone, whether the file calls it special or not.
        self._added: dict[str, int] = {each["content"]: each["id"] for each in added}
        self._special: dict[int, str] = {each["id"]: each["content"] for each in added if each["special"]}
        self._bytes = self._table(tokenizer) if self.byte_level else {}
        # The table is all that byte-level text needs; the tokenizer itself is freed.
        self._tokenizer = None if self.byte_level else tokenizer
        # The table with the names of special tokens, made when it is needed.
        self._named: dict[int, bytes] = {}
        # The same with some of them.
        self._with_names: dict[frozenset[str], dict[int, bytes]] = {}

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def detokenizer(self, prompt: list[int], shown: frozenset[str] = frozenset()) -> Detokenizer:
        """`shown`: names of special tokens that are written; others have no text."""
        named = {token: name for token, name in self._special.items() if name in shown}
        if self._tokenizer is not None:
            hidden = self._special.keys() - named.keys() if named else frozenset()
            return WindowDetokenizer(self._tokenizer, prompt, names=bool(named), hidden=hidden)
        if not named:
            return ByteDetokenizer(self._bytes)
        # One of the formats that the server reads, so there are few.
        if shown not in self._with_names:
            self._with_names[shown] = self._bytes | {token: name.encode() for token, name in named.items()}
        return ByteDetokenizer(self._with_names[shown])

    def of_prompt(self) -> Detokenizer:
        """Of a prompt, from its first token on, with its special tokens by their names."""
        if self._tokenizer is not None:
            return WindowDetokenizer(self._tokenizer, [], names=True)
        if not self._named:
            self._named = self._bytes | {token: name.encode() for token, name in self._special.items()}
        return ByteDetokenizer(self._named)

    def special(self, names: Iterable[str]) -> dict[str, int]:
        """Those of the names that are tokens which no text is encoded as in parts, and their ids."""
        return {name: self._added[name] for name in names if name in self._added}

    def end_of(self, ids: list[int]) -> str:
        """The text at the end of a prompt, with its special tokens by their names."""
        text = self.of_prompt()
        return text.feed(ids[-TOKENS_OF_AN_END:]) + text.flush()

    def added_before(self, ids: list[int], text: str) -> int:
        """How many special tokens the tokenizer has put before this text."""
        names = [self._special[token] for token in takewhile(self._special.__contains__, ids)]
        # The caller may have written some of them, or the same ones again.
        return next(place for place in range(len(names) + 1) if text.startswith("".join(names[place:])))

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token, special tokens by their name (for logprobs)."""
        if (name := self._special.get(token)) is not None:
            return name.encode()
        if self._tokenizer is None:
            return self._bytes.get(token, b"")
        return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()

    def text_of(self, token: int) -> str:
        return self.bytes_of(token).decode(errors="replace")

    def _table(self, tokenizer: Tokenizer) -> dict[int, bytes]:
        alphabet = byte_of_character()
        return {
            token: b"" if token in self._special else token_bytes(text, alphabet)
            for text, token in tokenizer.get_vocab(with_added_tokens=True).items()
        }


class ByteDetokenizer:
    """Ids outside the table have no text, as with the tokenizer."""

    __slots__ = ("_bytes", "_decoder")

    def __init__(self, table: dict[int, bytes]) -> None:
        self._bytes = table
        self._decoder: Any = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def unfinished(self) -> bool:
        return bool(self._decoder.buffer)

    def feed(self, ids: list[int]) -> str:
        table = self._bytes
        return str(self._decoder.decode(b"".join([table.get(each, b"") for each in ids])))

    def flush(self) -> str:
        return str(self._decoder.decode(b"", True))


class WindowDetokenizer:
    """Decodes the last few tokens again with each new one and emits the difference.

    ids:  … | kept for context | window (not emitted yet) | new
            ^ _start           ^ _emitted
    """

    __slots__ = ("_emitted", "_hidden", "_ids", "_names", "_tokenizer")

    CONTEXT = 6

    def __init__(
        self, tokenizer: Tokenizer, prompt: list[int], names: bool = False, hidden: Set[int] = frozenset()
    ) -> None:
        """`names`: special tokens but those in `hidden` are written by their names, else not at all."""
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._names = names
        self._ids = [each for each in prompt[-self.CONTEXT :] if each not in hidden]
        self._emitted = len(self._ids)

    @property
    def unfinished(self) -> bool:
        return self._emitted < len(self._ids)

    def feed(self, ids: list[int]) -> str:
        return "".join([self._feed_one(each) for each in ids if each not in self._hidden])

    def flush(self) -> str:
        return self._emit(self._decode(0, len(self._ids)))

    def _feed_one(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(0, len(self._ids))
        # A token may yet decide how the next is written (a mark for a space), even one without text.
        waits = text.endswith(REPLACEMENT) or text == self._decode(0, self._emitted)
        if waits and len(self._ids) - self._emitted < LONGEST_UNFINISHED:
            return ""
        return self._emit(text)

    def _emit(self, text: str) -> str:
        new = text[len(self._decode(0, self._emitted)) :]
        # The context for what follows is what was emitted last: it begins where a character begins.
        self._ids = self._ids[self._emitted :] if new else self._ids[: self._emitted]
        self._emitted = len(self._ids)
        return new

    def _decode(self, start: int, end: int) -> str:
        return str(self._tokenizer.decode(self._ids[start:end], skip_special_tokens=not self._names))


def byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character: itself where it is one, else from 256 up."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    characters = {chr(byte): byte for byte in itself}
    characters.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return characters


def token_bytes(text: str, alphabet: dict[str, int]) -> bytes:
    """A token with a character outside the alphabet (an added one, say) is its own text."""
    try:
        return bytes([alphabet[character] for character in text])
    except KeyError:
        return text.encode()
