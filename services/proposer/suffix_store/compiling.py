"""The loops are compiled, or loaded from disk, in a thread of their own: whoever asks meanwhile goes without. What a
process has loaded before it forks, all that it forks have."""

from __future__ import annotations

import functools
import logging
import threading
from array import array
from collections.abc import Callable

from kernels.cpu_cache import on_disk
from services.proposer.draft import Draft
from services.proposer.knowledge import OWN, Knowledge, Rule
from services.proposer.namespaces import Namespaces
from services.proposer.proposer import Ask, View
from services.proposer.suffix_store import branches
from services.proposer.suffix_store.step import step

log = logging.getLogger(__name__)
_compiled = threading.Event()
_branching = threading.Event()
_to_tell: list[Callable[[], None]] = []


def is_compiled() -> bool:
    """Starts it when nobody has."""
    start()
    return _compiled.is_set()


def can_branch() -> bool:
    """Whether chains can become trees, which is compiled last: until then they stay chains."""
    return _branching.is_set()


@functools.cache
def start() -> threading.Thread:
    thread = threading.Thread(target=_compile, name="compile-proposers", daemon=True)
    thread.start()
    return thread


def when_loaded(tell: Callable[[], None]) -> None:
    """Asked for before it starts; told from its thread, when the loops are on disk as this machine needs them. Where no
    disk keeps them, never."""
    _to_tell.append(tell)


def load() -> None:
    """Here and now, in a process without threads: they are loaded before this returns."""
    _compile()


def _compile() -> None:
    try:
        knowledge = Knowledge(Namespaces(4, 1000, most=1), depth=4)
        knowledge.guess([Ask(View(1, array("i", [1, 2, 1])), 1)], OWN, Rule())
    # Then there are no drafts from text; all else goes on.
    except Exception:
        log.exception("the proposers' loops can't be compiled: there are no drafts")
        return
    _compiled.set()
    try:
        branches.grown(Draft([1], "", 0, chances=[0.5]), [], [])
    except Exception:
        log.exception("what makes trees of drafts can't be compiled: they stay chains")
    else:
        _branching.set()
    if on_disk(step):
        for tell in _to_tell:
            tell()
