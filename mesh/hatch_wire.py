"""The calling side of a hatch (mesh/hatch.py): a blocking link's wire over a plain Unix socket. One thread."""

from __future__ import annotations

import math
import select
import socket
import time
from collections import deque
from collections.abc import Sequence

from mesh import processors
from mesh.errors import Malformed, PeerLost
from mesh.framing import PIECE, Reassembly, framed
from mesh.hatch import VERSION
from mesh.pace import Pace, Redialled
from mesh.transport import Frame, Limits

# Who waits for an answer stays awake for so many seconds: who sleeps takes longer to be woken than the other side to
# answer.
LOOKS = 5e-4
# What `select` can watch.
FD_SETSIZE = 1024


class HatchWire(Redialled):
    """Implements mesh.blocking.Wire."""

    def __init__(self, path: str, identity: bytes, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._introduction = framed([VERSION, identity])
        self._pace = Pace()
        self._retry_at = 0.0
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._vigil = processors.Vigil()
        # Looked at when a message has left, for the next one: nobody waits then.
        self._processor = processors.NOT_KNOWN
        self._inbox: deque[list[bytes]] = deque()
        # The rest of a message that didn't fit.
        self._unsent = b""
        self._is_up()

    def send(self, frames: Sequence[Frame]) -> bool:
        if self._socket is None and not self._is_up():
            return False
        if self._unsent:
            self._write()
            if self._unsent:
                return False
        self._unsent = message = framed(frames, self._processor)
        self._write()
        self._processor = processors.current()
        if self._unsent and len(self._unsent) == len(message):
            # Nothing of it is on its way.
            self._unsent = b""
            return False
        return self._socket is not None

    def receive(self, timeout: float) -> Sequence[bytes] | None:
        """Raises PeerLost when the connection is over, after what had arrived."""
        until = time.monotonic() + timeout
        while not self._inbox:
            if self._socket is None:
                raise PeerLost(f"no connection to {self._path}")
            if not self._ready(until):
                return None
            if self._unsent:
                self._write()
            self._read_piece()
        return self._inbox.popleft()

    def _rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self._leave()
        self._retry_at = math.inf

    # The connection ---------------------------------------------------------------------------------------

    def _is_up(self) -> bool:
        if self._socket is None and self.now() >= self._retry_at:
            self._retry_at = self.now() + self._pace.next()
            self._connect()
        return self._socket is not None

    def _connect(self) -> None:
        connecting = None
        try:
            connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            connecting.connect(self._path)
            connecting.send(self._introduction)
        except OSError:
            if connecting is not None:
                connecting.close()
            return
        self._socket = connecting
        self._reassembly = Reassembly(self._limits)
        self._poll.register(connecting, select.POLLIN)

    def _leave(self) -> None:
        """What has arrived can be read on. Nothing that was to be sent goes to a successor."""
        self._unsent = b""
        if self._socket is not None:
            self._poll.unregister(self._socket)
            self._socket.close()
            self._socket = None

    # Bytes ------------------------------------------------------------------------------------------------

    def _ready(self, until: float) -> bool:
        """Wait for mail, and for room when there is a rest. False when the time is up."""
        assert self._socket is not None
        if self._unsent:
            self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
        ready = self._looks(until) or self._sleep(max(0.0, until - time.monotonic()))
        if self._unsent:
            self._poll.modify(self._socket, select.POLLIN)
        return ready

    def _looks(self, until: float) -> bool:
        """Awake, while that is worth it."""
        poll = self._poll.poll
        if poll(0):
            return True
        now = time.monotonic()
        until = min(until, now + LOOKS)
        while now < until and self._vigil.give_way(now):
            if poll(0):
                return True
            now = time.monotonic()
        return False

    def _sleep(self, seconds: float) -> bool:
        assert self._socket is not None
        if self._socket.fileno() >= FD_SETSIZE:
            return bool(self._poll.poll(math.ceil(seconds * 1000)))
        # It alone counts in less than milliseconds.
        writing = [self._socket] if self._unsent else []
        return any(select.select([self._socket], writing, [], seconds))

    def _read_piece(self) -> bool:
        """Whether there was one."""
        if self._socket is None:
            return False
        try:
            piece = self._socket.recv(PIECE)
            self._inbox += self._reassembly.feed(piece)
        except (BlockingIOError, InterruptedError):
            return False
        except (OSError, Malformed):
            piece = b""
        if not piece:
            self._leave()
            return False
        self._pace.reset()
        return True

    def _write(self) -> None:
        assert self._socket is not None
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            # What the far side said before it left has arrived.
            while self._read_piece():
                pass
            self._leave()
