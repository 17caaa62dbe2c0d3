"""What a library does in the background: steps that are tried again when they fail, in two threads of low priority."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

_NICE = 10
# After an error a step waits, and after each further one twice as long.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds


class Stopped(Exception):
    """The library is being closed."""


class Steps:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Of steps that fail: seconds until the next attempt, and its time.
        self._waits: dict[str, tuple[float, float]] = {}
        self.failures = 0

    def failing(self) -> bool:
        return bool(self._waits)

    def do(self, step: Callable[[], None], at_once: bool = False) -> None:
        name = step.__name__.strip("_")
        wait, again_at = self._waits.get(name, (0.0, 0.0))
        if self._clock() < again_at and not at_once:
            return
        try:
            step()
        except Stopped:
            return
        except Exception as error:
            self.failures += 1
            if not self._waits:
                # With a full disk all steps fail, and one line is enough.
                what = "step %s of the library: %s; what is learned stays in memory, and each step is tried again"
                log.error(
                    f"the store can't be written, {what} after %g to %g s", name, error, _FIRST_WAIT, _LONGEST_WAIT,
                    exc_info=not isinstance(error, OSError),
                )  # fmt: skip
            wait = min(2 * wait or _FIRST_WAIT, _LONGEST_WAIT)
            self._waits[name] = wait, self._clock() + wait
        else:
            if self._waits.pop(name, None) and not self._waits:
                log.info("the store can be written again")


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
