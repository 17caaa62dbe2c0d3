"""A hatch beside a node's door: a plain Unix socket for threads of this machine that count in microseconds.

A message over ZeroMQ wakes six threads on its way there and back, those that ask and answer among them; here it wakes
two, or none where somebody is awake for it (docs/decisions/0015). What is said is the same: bundles, after a first
message with the caller's routing id. Knows no envelopes. The calling side is mesh/hatch_wire.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from mesh.address import IPC_PATH_BYTES, Endpoint
from mesh.errors import Malformed
from mesh.framing import PIECE, Reassembly, framed
from mesh.processors import Elsewhere, Vigil
from mesh.transport import Door, Frame, Limits, Line, LineOwner, Sent, Transport

log = logging.getLogger("mesh")

SUFFIX = ".hatch"
VERSION = b"specmesh-hatch-1"
MAX_CALLERS = 256
MAX_IDENTITY_BYTES = 255
# Who connects says who it is within so many seconds.
INTRODUCTION = 3.0
BACKLOG = 64
# So many seconds callers are waited for awake at most; then everybody else gets his turn.
LONGEST_WATCH = 2e-3
# Who was awaited is kept off for so many seconds more: who sleeps beside him would be woken where he is at work.
APART = 0.5
# So often it is looked whether everything has left.
LINGER_STEP = 2e-3


def hatch_of(endpoint: str) -> str | None:
    """The path beside an endpoint; None where there can't be one."""
    parsed = Endpoint.parse(endpoint)
    path = parsed.rest + SUFFIX
    if parsed.scheme != "ipc" or parsed.rest.startswith(("@", "*")) or len(path.encode()) > IPC_PATH_BYTES:
        return None
    return path


class Hatched:
    """A transport, and a hatch beside its door. Implements mesh.transport.Transport."""

    def __init__(self, transport: Transport, limits: Limits | None = None) -> None:
        self._transport = transport
        self._limits = limits or Limits()
        self._hatch: Hatch | None = None

    async def bind(self, endpoint: str, door: Door) -> str:
        bound = await self._transport.bind(endpoint, door)
        if (path := hatch_of(bound)) is not None:
            # Without it callers come through the door.
            try:
                self._hatch = Hatch(path, door, self._limits)
            except OSError as error:
                log.warning("no hatch at %s: %s", path, error)
        return bound

    def dial(self, endpoint: str, routing_id: bytes, owner: LineOwner) -> Line:
        return self._transport.dial(endpoint, routing_id, owner)

    def reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        if self._hatch is not None and (caller := self._hatch.callers.get(routing_id)) is not None:
            return caller.send(frames)
        return self._transport.reply(routing_id, frames)

    def stay_awake(self, routing_id: bytes, seconds: float) -> None:
        if self._hatch is not None and (caller := self._hatch.callers.get(routing_id)) is not None:
            self._hatch.stay_awake(caller, seconds)

    async def close(self, linger: float) -> None:
        hatch, self._hatch = self._hatch, None
        try:
            if hatch is not None:
                await hatch.close(linger)
        finally:
            await self._transport.close(linger)


class Hatch:
    """Listens. Raises OSError."""

    def __init__(self, path: str, door: Door, limits: Limits) -> None:
        self.callers: dict[bytes, Caller] = {}
        self._path, self._door, self._limits = path, door, limits
        self._loop = asyncio.get_running_loop()
        self._connected: dict[int, Caller] = {}
        self._poll = select.poll()
        # Who will speak in a moment, and until when that is waited for.
        self.awaited: set[Caller] = set()
        self._until = 0.0
        self._watches = False
        # Whose processors are kept off, and until when.
        self._apart: set[Caller] = set()
        self._apart_until = 0.0
        self._lifts: asyncio.TimerHandle | None = None
        self._elsewhere, self._vigil = Elsewhere(), Vigil()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # Of a process that was killed.
            Path(path).unlink(missing_ok=True)
            self._socket.bind(path)
            try:
                os.chmod(path, 0o600)
                self._socket.listen(BACKLOG)
                self._inode = os.stat(path).st_ino
            except BaseException:
                # Nobody is to knock at it.
                os.unlink(path)
                raise
        except BaseException:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket.fileno(), self._accept)

    async def close(self, linger: float) -> None:
        """Nobody is heard any more; what was said gets so many seconds to leave."""
        self._loop.remove_reader(self._socket.fileno())
        # Unless a successor listens there already. While ours is open, its file has another number.
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        self._socket.close()
        if self._lifts is not None:
            self._lifts.cancel()
        self._together()
        for caller in self._connected.values():
            caller.hear_no_more()
        until = self._loop.time() + linger
        try:
            while self._loop.time() < until:
                if not any(caller.has_rest for caller in self._connected.values()):
                    break
                await asyncio.sleep(LINGER_STEP)
        finally:
            for caller in list(self._connected.values()):
                caller.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                # No descriptors are left, mostly. It would wake us at once, and again.
                log.warning("nobody can be let in at %s: %s", self._path, error)
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(INTRODUCTION, self._listen_again)
            return
        accepted.setblocking(False)
        if len(self._connected) >= MAX_CALLERS:
            self._door.refused("too_many_peers")
            accepted.close()
            return
        caller = Caller(self, accepted, self._door, self._limits)
        self._connected[accepted.fileno()] = caller
        self._poll.register(accepted, select.POLLIN)
        self._loop.call_later(INTRODUCTION, caller.must_be_known)

    def _listen_again(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def introduced(self, caller: Caller, identity: bytes) -> None:
        """Who connects again before its loss was noticed takes its place over."""
        before = self.callers.get(identity)
        self.callers[identity] = caller
        if before is not None:
            before.close()

    def stay_awake(self, caller: Caller, seconds: float) -> None:
        """Begins when what was read is dealt with."""
        self.awaited.add(caller)
        self._until = time.monotonic() + min(seconds, LONGEST_WATCH)

    def watch(self) -> None:
        """Who is awaited is waited for awake: to be woken takes longer than to answer. Other callers are heard
        meanwhile, and everybody else in a moment."""
        if not self.awaited or self._watches:
            return
        if not self._vigil.is_possible():
            self.awaited.clear()
            return
        self._watches, goes_on = True, False
        try:
            self._stay_apart()
            # No longer than that, whatever is promised meanwhile.
            end = time.monotonic() + LONGEST_WATCH
            while self.awaited and (now := time.monotonic()) < self._until:
                if now >= end:
                    goes_on = True
                    break
                ready = self._poll.poll(0)
                if not ready and not self._vigil.give_way(now):
                    break
                for fd, _ in ready:
                    if (speaker := self._connected.get(fd)) is not None:
                        speaker.readable()
        finally:
            self._watches = False
            if goes_on:
                self._loop.call_soon(self.watch)
            else:
                self.awaited.clear()

    def _stay_apart(self) -> None:
        """On one processor, one would wait for the other."""
        self._apart = set(self.awaited)
        self._elsewhere.avoid({caller.processor for caller in self._apart})
        self._apart_until = self._loop.time() + APART
        if self._lifts is None:
            self._lifts = self._loop.call_at(self._apart_until, self._lift)

    def _lift(self) -> None:
        """Nobody has been awaited for a while."""
        self._lifts = None
        if self._apart and self._loop.time() < self._apart_until:
            self._lifts = self._loop.call_at(self._apart_until, self._lift)
        else:
            self._together()

    def _together(self) -> None:
        self._apart.clear()
        self._elsewhere.avoid(set())

    def left(self, caller: Caller, fd: int) -> None:
        del self._connected[fd]
        self._poll.unregister(fd)
        self.awaited.discard(caller)
        self._apart.discard(caller)
        if not self._apart:
            self._together()
        if caller.identity is not None and self.callers.get(caller.identity) is caller:
            del self.callers[caller.identity]
            self._door.disconnected()


class Caller:
    """A connection that was let in."""

    def __init__(self, hatch: Hatch, accepted: socket.socket, door: Door, limits: Limits) -> None:
        self.identity: bytes | None = None
        self._hatch, self._socket, self._door = hatch, accepted, door
        self._reassembly = Reassembly(limits)
        # The rest of a message that didn't fit.
        self._unsent = b""
        self._full = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(accepted.fileno(), self.readable)

    def send(self, frames: Sequence[Frame]) -> Sent:
        """Without waiting."""
        if self._closed:
            return Sent.GONE
        if self._unsent:
            self._full = True
            return Sent.FULL
        message = framed(frames)
        try:
            sent = self._socket.send(message)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return Sent.GONE
        if sent < len(message):
            self._unsent = message[sent:]
            self._loop.add_writer(self._socket.fileno(), self._writable)
        return Sent.SENT

    @property
    def processor(self) -> int:
        """It ran there when it spoke last; -1: it didn't say."""
        return self._reassembly.processor

    @property
    def has_rest(self) -> bool:
        """Something that was said hasn't left yet."""
        return bool(self._unsent)

    def hear_no_more(self) -> None:
        self._loop.remove_reader(self._socket.fileno())

    def must_be_known(self) -> None:
        if self.identity is None and not self._closed:
            self._door.refused("handshake")
            self.close()

    def close(self) -> None:
        """Repeat-safe."""
        if not self._closed:
            self._closed = True
            fd = self._socket.fileno()
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            self._hatch.left(self, fd)
            self._socket.close()

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())
            if self._full:
                self._full = False
                self._door.writable()

    def readable(self) -> None:
        try:
            piece = self._socket.recv(PIECE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            piece = b""
        if not piece:
            self.close()
            return
        try:
            for frames in self._reassembly.feed(piece):
                if self.identity is None:
                    self._introduce(frames)
                else:
                    self._hatch.awaited.discard(self)
                    try:
                        self._door.received(self.identity, frames)
                    except Exception:
                        # A fault of ours, and one message lost.
                        log.exception("a message could not be taken")
                        self._door.refused("internal")
                if self._closed:
                    return
        except Malformed:
            self._door.refused("malformed")
            self.close()
        else:
            self._hatch.watch()

    def _introduce(self, frames: list[bytes]) -> None:
        if len(frames) != 2 or frames[0] != VERSION or not 0 < len(frames[1]) <= MAX_IDENTITY_BYTES:
            self._door.refused("handshake")
            self.close()
            return
        self.identity = frames[1]
        self._hatch.introduced(self, frames[1])
