"""Steps written to a file and run again: the input (Work) and output (Result) of each.

With the setting record_steps a worker records them; `python -m bench step --replay FILE` runs them through a model,
compares the tokens and times the steps. A record contains the token ids of prompts and answers.

    file   = frame*          frame = length (8 bytes, little-endian) + msgpack of Step
"""

from __future__ import annotations

import logging
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from services.worker.running.runner import Runner
from services.worker.running.work import Result, Work

log = logging.getLogger("specmesh.worker")

LENGTH = struct.Struct("<Q")
# A longer frame means that the file is no record.
LONGEST_FRAME = 1 << 30
# A forgotten record must not fill the disk.
MOST_BYTES = 1 << 30


class Step(msgspec.Struct):
    work: Work
    result: Result


class Probs(msgspec.Struct, tag="probs"):
    """Draft.probs as bytes: float32 rows of `width`."""

    width: int
    rows: bytes


def encoded(step: Step) -> bytes:
    return _ENCODER.encode(step)


def decoded(frame: bytes) -> Step:
    """Raises msgspec.ValidationError or DecodeError, both ValueErrors, for what isn't a step."""
    step = _DECODER.decode(frame)
    for index, item in enumerate(step.work.items):
        if item.draft.probs is not None:
            probs = msgspec.convert(item.draft.probs, Probs)
            rows = np.frombuffer(probs.rows, np.float32).reshape(-1, probs.width)
            step.work.items[index] = item._replace(draft=item.draft._replace(probs=rows))
    return step


def _plain(value: Any) -> Any:
    """Probabilities are a numpy array or a torch tensor, pages an array."""
    if isinstance(value, array):
        return value.tolist()
    rows = np.ascontiguousarray(value.float().cpu() if hasattr(value, "cpu") else value, np.float32)
    return Probs(rows.shape[-1], rows.tobytes())


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER = msgspec.msgpack.Decoder(Step)


class Recorder:
    """Appends steps to a file until it is full, or can't be written."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO | None = path.open("wb")
        self._written = 0

    def __call__(self, work: Work, result: Result) -> None:
        if self._file is None:
            return
        frame = encoded(Step(work, result))
        self._written += LENGTH.size + len(frame)
        try:
            if self._written > MOST_BYTES:
                raise OSError(f"more than {MOST_BYTES} bytes")
            self._file.write(LENGTH.pack(len(frame)) + frame)
            self._file.flush()
        except OSError as error:
            log.warning("steps are no longer recorded: %s", error)
            self._file.close()
            self._file = None


def read(path: Path) -> Iterator[Step]:
    """Raises ValueError if the file is no record; ignores a truncated last frame."""
    with path.open("rb") as file:
        while len(head := file.read(LENGTH.size)) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            if length > LONGEST_FRAME:
                raise ValueError(f"{path} is no record of steps")
            frame = file.read(length)
            if len(frame) < length:
                return
            yield decoded(frame)


def run_again(runner: Runner, steps: Iterator[Step]) -> Iterator[tuple[Step, Result]]:
    """Each recorded step with its new result. The runner must be new and have as many pages as the recorded one."""
    for step in steps:
        runner.launch(step.work)
        yield step, runner.finish()
        runner.draft()


def tokens_of(result: Result) -> list[list[int]]:
    return [[] if verdict is None else verdict.tokens for verdict in result.verdicts]
