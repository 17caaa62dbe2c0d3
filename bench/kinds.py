"""Kinds of text that are found on a machine, as tokens of the default model: what a proposer learns and is tried on.

Files come in an order that depends on nothing but their names; a kind a machine doesn't have is left out.
"""

from __future__ import annotations

import gzip
import random
import sys
import sysconfig
from array import array
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from models.sources import ensure_model
from services.api.settings import Settings, cache_dir

LONGEST = 4000  # tokens of one file
SHORTEST = 400
_BYTES = (2_000, 200_000)  # of a file
_SHARE = Path("/usr/share")
_STDLIB = Path(sysconfig.get_paths()["stdlib"])
_PACKAGES = Path(sysconfig.get_paths()["purelib"])


def _files(*places: tuple[Path, str]) -> Callable[[], list[Path]]:
    return lambda: [file for root, pattern in places for file in root.rglob(pattern)]


def _sources() -> list[Path]:
    return [file for file in _STDLIB.rglob("*.py") if "site-packages" not in file.parts]


KINDS: dict[str, Callable[[], list[Path]]] = {
    "python": _sources,
    "c headers": _files((Path(sysconfig.get_paths()["include"]), "*.h"), (_PACKAGES / "numpy", "*.h")),
    "stubs": _files((_PACKAGES, "*.pyi")),
    "json": _files((Path(sys.base_prefix), "*.json"), (_SHARE, "*.json")),
    "manual pages": _files((_SHARE / "man" / "man1", "*.gz"), (_SHARE / "man" / "man5", "*.gz")),
    "licences": _files((_SHARE / "doc", "copyright")),
    "package pages": _files((_PACKAGES, "METADATA"), (Path(sys.base_prefix), "METADATA")),
    "prose": _files((_SHARE / "perl", "*.pod"), (Path(sys.base_prefix), "*.rst"), (Path(sys.base_prefix), "*.md")),
}


def texts_of(kind: str, tokens: int, more: int) -> tuple[list[array[int]], list[array[int]]] | None:
    """So many tokens of texts to learn, and so many texts more; None: the machine has too little of it."""
    learned: list[array[int]] = []
    held_out: list[array[int]] = []
    total = 0
    for text in texts(kind):
        if total < tokens:
            learned.append(text)
            total += len(text)
        else:
            held_out.append(text)
        if len(held_out) == more:
            return learned, held_out
    return None


def texts(kind: str) -> Iterator[array[int]]:
    """All that the machine has."""
    found = sorted(KINDS[kind]())
    random.Random(kind).shuffle(found)
    seen: set[bytes] = set()
    for file in found:
        text = array("i", _tokenizer().encode(_read(file)).ids[:LONGEST]) if _is_sized(file) else array("i")
        # The same file in two places is one text.
        if len(text) >= SHORTEST and text.tobytes() not in seen:
            seen.add(text.tobytes())
            yield text


def _is_sized(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and _BYTES[0] <= file.stat().st_size <= _BYTES[1]


def _read(file: Path) -> str:
    data = file.read_bytes()
    try:
        return (gzip.decompress(data) if file.suffix == ".gz" else data).decode(errors="replace")[: 8 * LONGEST]
    except OSError:
        return ""


@cache
def _tokenizer() -> Tokenizer:
    folder = ensure_model("smollm2-135m-instruct", cache_dir(Settings.for_tests()))
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
