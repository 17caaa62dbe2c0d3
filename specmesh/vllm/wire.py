"""One connection to a proposer: questions out, answers in, in the mesh's protocol (docs/internals/mesh.md).

No more of it than this needs, so that the engine's process loads nothing of ours: one question is open at a time, and
every bundle greets again, so that a proposer that has restarted takes it. ZeroMQ's own thread sends and receives;
nothing here waits but `wait`.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zmq

VERSION = 5
_HELLO, _ASK, _REPLY, _FAILURE = 1, 3, 12, 13
# Of one message.
MOST_BYTES = 16 << 20
_KEY_BYTES = 40

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Keys(NamedTuple):
    server: bytes
    public: bytes
    secret: bytes


class Answer(NamedTuple):
    """`fields` of the answer; None: the proposer refused, for `reason`. `life`: its epoch, another one for
    each process, which knows no text at first."""

    question: int
    fields: list[Any] | None
    life: int
    reason: str = ""


def load_keys(folder: str, name: str) -> Keys:
    """Made by `specmesh keys make NAME`. Raises ValueError with what is wrong."""
    keys = []
    for file in ("mesh.public", f"{name}.public", f"{name}.secret"):
        path = Path(folder, file)
        try:
            key, mode = path.read_bytes().strip(), path.stat().st_mode
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}; make it with `specmesh keys make {name}`") from None
        if len(key) != _KEY_BYTES:
            raise ValueError(f"{path} holds no key")
        if file.endswith(".secret") and stat.S_IMODE(mode) & 0o077:
            raise ValueError(f"{path} can be read by others: chmod 600 {path}")
        keys.append(key)
    return Keys(*keys)


class Connection:
    def __init__(self, address: str, name: str, epoch: int, keys: Keys | None = None) -> None:
        """Raises ValueError for an address that needs keys."""
        if keys is None and not address.startswith(("ipc://", "inproc://")):
            raise ValueError(f"{address} leaves this machine or its files: it needs keys (SPECMESH_KEYS_DIR)")
        self.address, self._name, self._epoch, self._keys = address, name, epoch, keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._opened = 0
        self._questions = 0
        self._socket = self._open()

    def _open(self) -> zmq.Socket[bytes]:
        self._opened += 1
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, f"{self._name}|{self._epoch:x}|{self._opened}".encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        socket.setsockopt(zmq.SNDHWM, 16)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 10)
        if self._keys is not None and not self.address.startswith("ipc://"):
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.server)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.connect(self.address)
        return socket

    def reopen(self) -> None:
        """Leave what is queued behind."""
        self._socket.close(0)
        self._socket = self._open()

    def ask(self, body: bytes, milliseconds: int, kind: str = "propose") -> int:
        """Send a message to the proposer; the question's number. 0: it couldn't be sent."""
        self._questions += 1
        number = self._questions
        records = ((_HELLO, self._name, self._epoch), (_ASK, number, "proposer", kind, milliseconds, body, 0))
        try:
            self._socket.send(_encode((VERSION, self._epoch, 0, records)), zmq.NOBLOCK)
        except zmq.ZMQError:
            return 0
        return number

    def receive(self) -> Answer | None:
        """The next answer that has arrived. Raises ValueError for what is none."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return None
            if (answer := self._read(frames[0])) is not None:
                return answer

    def wait(self, milliseconds: int) -> bool:
        """Whether something has arrived within that time."""
        return bool(self._socket.poll(milliseconds))

    def _read(self, frame: bytes) -> Answer | None:
        try:
            version, epoch, to_epoch, records = _decode(frame)
            if version != VERSION or to_epoch != self._epoch:
                return None
            for op, *fields in records:
                if op == _REPLY:
                    return Answer(fields[0], _decode(fields[2]), epoch)
                if op == _FAILURE:
                    return Answer(fields[0], None, epoch, str(fields[1])[:80])
        except (msgspec.DecodeError, RecursionError, TypeError, IndexError, KeyError) as error:
            raise ValueError(f"no bundle: {error}") from None
        return None

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()
