"""Compiles the loops in a thread, or loads them from disk; until that is done the plain drafters draft. A process that
loads them before it forks passes them on to its children.

    python -m services.proposer.fast.compiling      compiles all loops, for a container image; 0: all are compiled
"""

from __future__ import annotations

import functools
import logging
import sys
import tempfile
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

from kernels.cpu_cache import on_disk
from services.api.drafter import Text
from services.proposer.fast.drafting.step import step
from services.proposer.fast.namespaces import FastNamespaces
from services.proposer.fast.texts import FastTexts
from services.proposer.plain.texts import TextOptions
from services.proposer.segments.segment import Segment, merge

log = logging.getLogger(__name__)
_compiled = threading.Event()
_to_tell: list[Callable[[], None]] = []


def is_compiled() -> bool:
    """Starts compiling, if it hasn't been started."""
    start()
    return _compiled.is_set()


@functools.cache
def start() -> threading.Thread:
    thread = threading.Thread(target=_compile, name="compile-proposers", daemon=True)
    thread.start()
    return thread


def when_loaded(tell: Callable[[], None]) -> None:
    """`tell` is called from the compiling thread once the loops are on disk for this machine; never, where none can be
    kept on disk. To be called before compiling starts."""
    _to_tell.append(tell)


def load() -> None:
    """Compiles or loads before it returns, without a thread: for a process that will fork."""
    _compile()


def _compile() -> None:
    try:
        texts = FastTexts(FastNamespaces(4, 1000, most=1), TextOptions(depth=4))
        texts.take_in([Text(1, array("i", [1, 2, 1]))])
    # The plain drafters draft then.
    except Exception:
        log.exception("the drafting loops can't be compiled: drafting stays slow")
        return
    _compiled.set()
    if on_disk(step):
        for tell in _to_tell:
            tell()


def main() -> int:
    """Each loop is called once with the types that the proposer calls it with."""
    load()
    with tempfile.TemporaryDirectory() as folder:
        parts = [Segment.build([[1, 2, 1], [3]], Path(folder, str(number))) for number in range(2)]
        merge(parts, Path(folder, "merged")).close()
        for part in parts:
            part.close()
    return 0 if _compiled.is_set() else 1


if __name__ == "__main__":
    sys.exit(main())
