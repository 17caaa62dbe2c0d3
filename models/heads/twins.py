"""Twins: tokens of two vocabularies that stand for the same bytes. By them a draft model with another tokenizer reads
the target's text and drafts its tokens; a token without a twin is never drafted. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import ModelError
from models.sources import read_json

# Of the draft model's tokens, the share that may be without a twin.
MOST_ALONE = 0.5
ALONE = -1
# A token's bytes, and whether it is added whole (a marker of a chat template), not made of text.
_Text = tuple[bytes, bool]


@dataclass(frozen=True, slots=True)
class Twins:
    # By the target's id, the draft model's; where there is no twin, what it knows as unknown.
    read: tuple[int, ...]
    # By the draft model's id, the target's, or ALONE.
    drafted: tuple[int, ...]


def twins_of(folder: Path, target: Path, own_size: int, target_size: int) -> Twins | None:
    """None: both have the same ids. Raises `ModelError` where too few tokens have a twin."""
    file, other = (each / "tokenizer.json" for each in (folder, target))
    if own_size == target_size and file.read_bytes() == other.read_bytes():
        return None
    own, theirs = _texts(file, own_size), _texts(other, target_size)
    alone = sum(text not in theirs for text in own)
    if alone > MOST_ALONE * len(own):
        raise ModelError(
            f"{folder} has another tokenizer than {target}: {alone} of its {len(own)} tokens are none of the model's",
            "use a draft model with the same tokenizer, or a similar one",
        )
    read, drafted = [_unknown(file, own_size)] * target_size, [ALONE] * own_size
    for text, token in own.items():
        if text in theirs:
            read[theirs[text]], drafted[token] = token, theirs[text]
    return Twins(tuple(read), tuple(drafted))


def _texts(file: Path, size: int) -> dict[_Text, int]:
    """Ids by what they stand for; of several ids the first, and one of a fallback to bytes last."""
    described: dict[str, Any] = read_json(file)
    try:
        model, decoder = described["model"], described.get("decoder") or {}
        added = {each["id"]: (each["content"].encode(), True) for each in described.get("added_tokens") or ()}
        letters = _LETTERS if decoder.get("type") == "ByteLevel" else None
        texts = {token: (_bytes_of(text, letters), False) for text, token in _pieces(model["vocab"])} | added
        last = {token for text, token in _pieces(model["vocab"]) if _fallback(text) is not None}
        found: dict[_Text, int] = {}
        for token in sorted(texts, key=lambda token: (token in last, token)):
            if 0 <= token < size:
                found.setdefault(texts[token], token)
        if found:
            return found
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        pass
    raise ModelError(f"{file} holds no vocabulary", "take the model's own tokenizer.json")


def _pieces(vocabulary: Any) -> Iterator[tuple[str, int]]:
    """Of a table of ids, or of a list of pieces with scores."""
    if isinstance(vocabulary, dict):
        yield from vocabulary.items()
    else:
        yield from ((piece[0], token) for token, piece in enumerate(vocabulary))


def _bytes_of(text: str, letters: dict[str, int] | None) -> bytes:
    if letters is not None:
        return bytes(letters[each] for each in text) if all(each in letters for each in text) else text.encode()
    fallback = _fallback(text)
    return text.replace("▁", " ").encode() if fallback is None else bytes([fallback])


def _fallback(text: str) -> int | None:
    """The byte of a piece like <0x0A>."""
    return int(text[3:5], 16) if len(text) == 6 and text.startswith("<0x") and text.endswith(">") else None


def _unknown(file: Path, size: int) -> int:
    model = read_json(file)["model"]
    name, vocabulary = model.get("unk_token"), model["vocab"]
    token = model.get("unk_id") if name is None else dict(_pieces(vocabulary)).get(name)
    return token if isinstance(token, int) and 0 <= token < size else 0


def _letters() -> dict[str, int]:
    """The letters in which byte-level tokenizers write bytes: printable ones as themselves, others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_LETTERS = _letters()
