"""Compiles the loops in a thread, or loads them from disk; until that is done there are no drafts. A process that loads
them before it forks passes them on to its children."""

from __future__ import annotations

import functools
import logging
import threading
from array import array
from collections.abc import Callable

from kernels.cpu_cache import on_disk
from services.api.drafter import Draft, DraftRequest, Text
from services.proposer.fast.drafting import branches
from services.proposer.fast.drafting.step import step
from services.proposer.fast.namespaces import Namespaces
from services.proposer.fast.texts import OWN, Rule, Texts

log = logging.getLogger(__name__)
_compiled = threading.Event()
_branching = threading.Event()
_to_tell: list[Callable[[], None]] = []


def is_compiled() -> bool:
    """Starts compiling, if it hasn't been started."""
    start()
    return _compiled.is_set()


def can_branch() -> bool:
    """Whether drafts can be trees: the code for it is compiled last."""
    return _branching.is_set()


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
        texts = Texts(Namespaces(4, 1000, most=1), depth=4)
        texts.draft([DraftRequest(Text(1, array("i", [1, 2, 1])), 1)], OWN, Rule())
    # There are no drafts from text then; requests go on.
    except Exception:
        log.exception("the drafting loops can't be compiled: there will be no drafts")
        return
    _compiled.set()
    try:
        branches.grown(Draft([1], confidence=[0.5]), [], [])
    except Exception:
        log.exception("the loop that makes trees can't be compiled: drafts stay chains")
    else:
        _branching.set()
    if on_disk(step):
        for tell in _to_tell:
            tell()
