"""What tests of real processes ask: whether one is gone, and to wait until something is so."""

from __future__ import annotations

import time
from collections.abc import Callable


def gone(pid: int) -> bool:
    """Ended; a process that nobody has waited for yet counts as ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
