"""Epochs: integers that grow with every start of a node. What an older epoch says is dropped.

Wall time alone will not do: after the clock has stepped back, every successor would count as older. A folder keeps the
newest epoch that was given out there, and a peer that knows a newer one tells it (`at_least`).
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

FILE = "epoch"
# Msgpack's integers end at 2**64; microseconds since 1970 are far below.
MAX_EPOCH = 2**62
_newest = 0


def new_epoch() -> int:
    """Grows with every call in this process: microseconds since 1970, or more."""
    global _newest
    _newest = max(_newest + 1, time.time_ns() // 1000)
    return _newest


def next_epoch(folder: Path, at_least: int = 0) -> int:
    """Larger than all that were given out with this folder, and not below `at_least`."""
    with os.fdopen(os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
        # The kernel releases the lock with the file.
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = file.read(32).strip()
        last = int(kept) if kept.isdigit() else 0
        epoch = max(new_epoch(), min(max(last + 1, at_least), MAX_EPOCH))
        file.seek(0)
        # Of equal length, so that a crash in between leaves no shorter number.
        file.write(b"%020d\n" % epoch)
        return epoch
