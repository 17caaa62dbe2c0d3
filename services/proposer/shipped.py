"""Answers of the model that come with specmesh, as a segment that all namespaces of its vocabulary draft from, as if
each had a corpus of them. Everyone has this text, so its use tells nothing about other callers."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from models.shipped_answers import answers_of
from services.proposer.segments.segment import Segment

log = logging.getLogger(__name__)


class ShippedAnswers:
    def __init__(self, read: Callable[[str], Sequence[Any]] = answers_of) -> None:
        self._read = read
        self._segments: dict[str, list[Segment]] = {}

    def prepare(self, vocabulary: str) -> None:
        """Make the segment, in a thread; without it there are fewer drafts."""
        try:
            if texts := self._read(vocabulary):
                self._segments[vocabulary] = [_segment(texts, vocabulary)]
        except (OSError, ValueError) as error:
            log.error("answers that come with specmesh can't be drafted from: %s", error)

    def of(self, vocabulary: str) -> list[Segment]:
        """One segment; none before it is made, and where there are no answers."""
        return self._segments.get(vocabulary, [])

    def close(self) -> None:
        for segments in self._segments.values():
            for segment in segments:
                segment.close()


def _segment(texts: Sequence[Any], vocabulary: str) -> Segment:
    prefix = f"specmesh-answers-{os.getuid()}-"
    _remove_left(prefix)
    # The file stays mapped when its name is gone.
    with tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-") as folder:
        return Segment.build(texts, Path(folder, "segment"), vocabulary)


def _remove_left(prefix: str) -> None:
    """What proposers left that were killed while they made theirs."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)
