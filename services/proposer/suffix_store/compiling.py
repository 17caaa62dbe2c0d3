"""The loops are compiled, or loaded from disk, in a thread of their own: whoever asks meanwhile goes without."""

from __future__ import annotations

import functools
import logging
import threading
from array import array

from services.proposer.suffix_store.automaton import Automaton
from services.proposer.suffix_store.followers import Followers, Rule, Turn

log = logging.getLogger(__name__)
_compiled = threading.Event()


def is_compiled() -> bool:
    """Starts it when nobody has."""
    start()
    return _compiled.is_set()


@functools.cache
def start() -> threading.Thread:
    thread = threading.Thread(target=_compile, name="compile-suffix", daemon=True)
    thread.start()
    return thread


def _compile() -> None:
    automaton, followers = Automaton(depth=4), Followers()
    try:
        followers.run([Turn(followers.write(automaton), array("i", [1, 2, 1]), 1)], Rule())
    # Then there are no drafts of this method; all else goes on.
    except Exception:
        log.exception("suffix decoding can't be compiled: it drafts nothing")
        return
    _compiled.set()
