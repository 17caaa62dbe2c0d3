"""The threads of a library: one writes, one builds. They run at low priority."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

_NICE = 10


class Repeating:
    """Calls `work` every `seconds`, or sooner when woken. An exception is logged, and the thread goes on."""

    def __init__(self, name: str, work: Callable[[], None], seconds: float) -> None:
        self._work, self._seconds = work, seconds
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self, patience: float) -> bool:
        """Whether it has ended."""
        self._stopping = True
        self._woken.set()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with suppress(OSError):
            # On Linux this sets the priority of the thread alone.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._stopping:
            try:
                self._work()
            except Exception:
                log.exception("%s failed; it is tried again", self._thread.name)
            self._woken.wait(self._seconds)
            self._woken.clear()
