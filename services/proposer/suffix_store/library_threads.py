"""Threads that do the slow work of a library: one writes, one builds. They leave the processor to those who guess."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from mesh import processors

log = logging.getLogger(__name__)

_NICE = 10


class Repeating:
    """Calls `work` again and again: after `seconds`, or sooner when it is woken. Lives on when work fails."""

    def __init__(self, name: str, work: Callable[[], None], seconds: float) -> None:
        self._work, self._seconds = work, seconds
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self, patience: float) -> bool:
        """Whether it has come to its end."""
        self._stopping = True
        self._woken.set()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        processors.anywhere()
        with suppress(OSError):
            # Of this thread alone: so it is on Linux.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._stopping:
            try:
                self._work()
            except Exception:
                log.exception("%s failed; it is tried again", self._thread.name)
            self._woken.wait(self._seconds)
            self._woken.clear()
