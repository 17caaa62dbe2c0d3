"""That a piece of code imports nothing, opens nothing, starts nothing and runs no other code, as Python sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_EVENTS = ("import", "exec", "compile", "open", "os.", "subprocess.", "socket.", "pickle")
_seen: list[str] = []
_listening = False


def _listen(event: str, given: tuple[Any, ...]) -> None:
    if _listening and event.startswith(_EVENTS):
        _seen.append(event)


# For the life of the process: Python has no way to take it away.
sys.addaudithook(_listen)


@contextmanager
def nothing_happens() -> Iterator[None]:
    global _listening
    _seen.clear()
    _listening = True
    try:
        yield
    finally:
        _listening = False
    assert _seen == []
