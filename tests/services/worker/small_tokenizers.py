"""Tokenizers of a few hundred tokens, in which markers are tokens or are spelled in several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from services.api.grammars import read_vocabulary
from tests.services.tokenizer.conftest import make_tokenizer


@dataclass(frozen=True, slots=True)
class SmallTokenizer:
    tokenizer: Tokenizer
    vocabulary: Any  # as llguidance reads it
    file: Path

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))


def small_tokenizer(folder: Path, markers: tuple[str, ...]) -> SmallTokenizer:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in markers])
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    return SmallTokenizer(tokenizer, read_vocabulary(file), file)
