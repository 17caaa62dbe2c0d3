"""Answers of models that come with specmesh, for text drafters to draft from. A file of answers/ holds those of one
model, gzipped:

    line 1    JSON: the vocabulary that the ids belong to
    rest      token ids, 16 bits each, little-endian; END behind each answer

deploy/answers.py makes them. Knows no drafter and no tokenizer.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).parent / "answers"
SUFFIX = ".gz"
END = 0xFFFF
# Longer first lines are no header.
_LONGEST_HEADER = 1 << 12


def answers_of(vocabulary: str, folder: Path = FOLDER) -> list[npt.NDArray[np.int32]]:
    """The answers of all models with this vocabulary. Raises OSError and ValueError for a file that isn't whole."""
    found = []
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            with gzip.open(file, "rb") as lines:
                if json.loads(lines.readline(_LONGEST_HEADER))["vocabulary"] == vocabulary:
                    found += _texts(lines.read(), file)
        except (EOFError, KeyError, TypeError, zlib.error) as error:
            raise ValueError(f"{file} is damaged: {error}") from error
    return found


def _texts(data: bytes, file: Path) -> Iterator[npt.NDArray[np.int32]]:
    if len(data) % 2:
        raise ValueError(f"{file} ends within a token")
    ids = np.frombuffer(data, "<u2").astype(np.int32)
    begin = 0
    for end in np.flatnonzero(ids == END).tolist():
        yield ids[begin:end]
        begin = end + 1
    if begin < len(ids):
        raise ValueError(f"{file} ends within an answer")


def write_answers(file: Path, vocabulary: str, texts: Iterable[Sequence[int]]) -> None:
    """Raises OverflowError and ValueError for ids that 16 bits don't hold. The same answers give the same bytes."""
    parts = [np.array([*text, END], np.uint16) for text in texts]
    if any((part[:-1] == END).any() for part in parts):
        raise ValueError(f"{END} is no token id here")
    header = json.dumps({"vocabulary": vocabulary}).encode() + b"\n"
    file.write_bytes(gzip.compress(header + b"".join(part.astype("<u2").tobytes() for part in parts), mtime=0))
