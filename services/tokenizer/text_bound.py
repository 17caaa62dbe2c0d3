"""How few tokens a text can have, from its bytes alone, so that a text that can't fit is refused without encoding it.

    least = bytes that have tokens / bytes of the longest token

Knows tokenizer.json. Has no bound where it can't be sure: a normalizer may remove text, an unknown token may stand for
any number of characters, an added token may take the spaces around it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

# Composing characters (NFC) makes a text shorter: "ΐ" written as three characters has 7 bytes, composed it has 2.
NFC_SHRINKS = 4
# Splitters that keep every byte of a text.
KEEPING = frozenset({"ByteLevel", "Digits", "Metaspace"})
# They are in no UTF-8, so vocabularies needn't have them.
NOT_IN_TEXTS = bytes([0xC0, 0xC1, *range(0xF5, 0x100)])


@dataclass(frozen=True, slots=True)
class TextBound:
    """`longest`: bytes of text that one token can stand for. `ignored`: bytes that the vocabulary doesn't have."""

    longest: int
    ignored: bytes = b""

    def least_tokens(self, text: str) -> int:
        """A text has as many tokens as this or more. Takes milliseconds for megabytes."""
        count = len(text.encode().translate(None, self.ignored))
        return -(-count // self.longest)


def bound_of(tokenizer: Tokenizer) -> TextBound | None:
    """None: the number of tokens has no bound."""
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    model, added = parts["model"], parts["added_tokens"]
    splitters = _parts(parts["pre_tokenizer"], "pretokenizers")
    normalizers = _parts(parts["normalizer"], "normalizers")
    shrinks = _shrinks(normalizers)
    if shrinks is None or model["type"] != "BPE" or not all(_keeps_text(each) for each in splitters):
        return None
    if any(each["lstrip"] or each["rstrip"] for each in added):
        return None
    byte_level = any(each["type"] == "ByteLevel" for each in splitters)
    ignored = _missing(model, byte_level)
    # A normalizer may write bytes that the text doesn't have.
    if ignored is None or (normalizers and ignored):
        return None
    # At the byte level each character of a token is a byte of the text.
    sizes = map(len, model["vocab"]) if byte_level else (len(token.encode()) for token in model["vocab"])
    longest = max([1, *sizes, *(len(each["content"].encode()) for each in added)])
    return TextBound(longest * shrinks, ignored)


def _missing(model: dict[str, Any], byte_level: bool) -> bytes | None:
    """Bytes of texts that have no token. None: characters without a token have no bytes either."""
    vocabulary = model["vocab"]
    if not byte_level:
        has_bytes = model["byte_fallback"] and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        return b"" if has_bytes else None
    missing = {_byte_of(character) for character in ByteLevel.alphabet() if character not in vocabulary}
    return bytes(sorted(missing - set(NOT_IN_TEXTS)))


def _byte_of(character: str) -> int:
    """Byte-level vocabularies write a byte as itself where it is a visible character, else from 256 up."""
    if ord(character) < 256:
        return ord(character)
    hidden: list[int] = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    return hidden[ord(character) - 256]


def _shrinks(normalizers: list[dict[str, Any]]) -> int | None:
    """How many times shorter a text may become."""
    shrinks = 1
    for each in normalizers:
        if each["type"] == "NFC":
            shrinks *= NFC_SHRINKS
        elif each["type"] == "Replace":
            old = each["pattern"].get("String")
            if old is None or len(each["content"].encode()) < len(old.encode()):
                return None
        elif each["type"] != "Prepend":
            return None
    return shrinks


def _keeps_text(splitter: dict[str, Any]) -> bool:
    if splitter["type"] == "Split":
        return bool(splitter["behavior"] != "Removed")
    return splitter["type"] in KEEPING


def _parts(part: dict[str, Any] | None, several: str) -> list[dict[str, Any]]:
    """The parts of a sequence, in order; none if there is none."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [inner for each in part[several] for inner in _parts(each, several)]
