"""An acceptor that speaks ZMTP by hand: a handshake, then whatever bytes it likes, then it is gone. What libzmq would
never send can only be said so."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) > 255:
        return bytes([flags | _LONG]) + struct.pack(">Q", len(body)) + body
    return bytes([flags, len(body)]) + body


def message(*bodies: bytes) -> bytes:
    return b"".join(frame(body, _MORE) for body in bodies[:-1]) + frame(bodies[-1])


def command(name: bytes, body: bytes = b"") -> bytes:
    return frame(bytes([len(name)]) + name + body, _COMMAND)


class RawAcceptor:
    """Takes `times` connections, one after the other, says `words` on each and leaves; then it is gone for good."""

    def __init__(self, path: Path, words: bytes, times: int) -> None:
        self.gone = threading.Event()
        self._path, self._words, self._times = path, words, times
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(30.0)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self._listener:
            for _ in range(self._times):
                connection, _ = self._listener.accept()
                # Whoever has had enough may leave first.
                with contextlib.suppress(OSError), connection:
                    connection.settimeout(5.0)
                    self._speak(connection)
        self._path.unlink()
        self.gone.set()

    def _speak(self, connection: socket.socket) -> None:
        connection.sendall(_GREETING)
        connection.recv(len(_GREETING), socket.MSG_WAITALL)
        _, size = connection.recv(2, socket.MSG_WAITALL)
        connection.recv(size, socket.MSG_WAITALL)
        role = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER"
        connection.sendall(command(b"READY", role) + self._words)
