"""Standard output and error through a bounded queue that one thread writes, so that a reader can't stop the process.

    print, logging ──▶ QueuedStream ──▶ queue (bounded) ──▶ thread ──▶ the terminal, pipe or file

A paused terminal (Ctrl-S) or a full pipe blocks only the thread; a closed pipe loses what is written to it. Lines for
which the queue has no room are dropped, and their number is written as soon as the reader goes on.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from typing import TextIO, cast

MOST_BYTES = 1 << 20
# How long the end of the process waits for a reader.
DRAIN_S = 1.0


class QueueWriter:
    """The queue and its thread."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._bytes = 0  # waiting or being written
        self._dropped = 0
        self._dropped_for = 2
        threading.Thread(target=self._run, name="output", daemon=True).start()

    def put(self, descriptor: int, data: bytes) -> None:
        """Never waits. Dropped if there is no room."""
        with self._changed:
            if self._bytes + len(data) > self._most_bytes:
                self._dropped += data.count(b"\n") or 1
                self._dropped_for = descriptor
                return
            self._queue.append((descriptor, data))
            self._bytes += len(data)
            self._changed.notify_all()

    def drain(self, timeout: float = DRAIN_S) -> bool:
        """Wait until everything is written. False: not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes and not self._dropped, timeout)

    def _run(self) -> None:
        while True:
            descriptor, data = self._next()
            _write(descriptor, data)
            with self._changed:
                self._bytes -= len(data)
                self._changed.notify_all()

    def _next(self) -> tuple[int, bytes]:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._dropped)
            if self._queue:
                return self._queue.popleft()
            notice = f"specmesh: {self._dropped} lines of output were dropped: the reader was too slow\n".encode()
            self._dropped = 0
            self._bytes += len(notice)
            return self._dropped_for, notice


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            # Whoever shares the terminal with us may have made it non-blocking.
            select.select([], [descriptor], [])
        except OSError:
            # The reader is gone, or the disk is full: a log line is no reason to end.
            return


class QueuedStream(io.TextIOBase):
    """Takes the place of sys.stdout or sys.stderr. Lines are queued when they end, the rest at a flush."""

    def __init__(self, writer: QueueWriter, replaced: TextIO) -> None:
        self._writer = writer
        self._descriptor = replaced.fileno()
        self._encoding = replaced.encoding
        self._lock = threading.Lock()
        self._parts: list[str] = []

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            self._parts.append(text)
            if "\n" in text:
                self._queue()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            self._queue()

    def _queue(self) -> None:
        text = "".join(self._parts)
        self._parts.clear()
        if text:
            self._writer.put(self._descriptor, text.encode(self._encoding, "backslashreplace"))


def install() -> None:
    """Write through a queue from now on, until the process ends. A fork would leave the thread behind: call it in the
    child. Streams without a descriptor (a test captures them) are left alone."""
    writer: QueueWriter | None = None
    for name in ("stdout", "stderr"):
        stream: TextIO = getattr(sys, name)
        if isinstance(stream, QueuedStream):
            continue
        try:
            stream.fileno()
        except (OSError, ValueError, AttributeError):
            continue
        writer = writer or QueueWriter()
        setattr(sys, name, cast(TextIO, QueuedStream(writer, stream)))
    if writer is not None:
        atexit.register(writer.drain)
