"""The loops are compiled, or loaded from disk, in a thread of their own: whoever asks meanwhile goes without."""

from __future__ import annotations

import functools
import logging
import threading
from array import array

from services.proposer.knowledge import OWN, Knowledge, Rule
from services.proposer.namespaces import Namespaces
from services.proposer.proposer import Ask, View

log = logging.getLogger(__name__)
_compiled = threading.Event()


def is_compiled() -> bool:
    """Starts it when nobody has."""
    start()
    return _compiled.is_set()


@functools.cache
def start() -> threading.Thread:
    thread = threading.Thread(target=_compile, name="compile-proposers", daemon=True)
    thread.start()
    return thread


def _compile() -> None:
    try:
        knowledge = Knowledge(Namespaces(4, 1000, most=1), depth=4)
        knowledge.guess([Ask(View(1, array("i", [1, 2, 1])), 1)], OWN, Rule())
    # Then there are no drafts from text; all else goes on.
    except Exception:
        log.exception("the proposers' loops can't be compiled: there are no drafts")
        return
    _compiled.set()
