"""CURVE keys in a folder, and who may connect. Knows files and the ZAP handshake; nothing of nodes or roles.

    keys/
      mesh.public  mesh.secret       the key every bound address shows: whoever has it may be a member
      NAME.public  NAME.secret       a member's own key, shown when it dials

The allow-list is the set of NAME.public files: a member is let in by adding its file, and put out by removing
it and restarting. A member's host needs mesh.*, its own NAME.* and everyone's NAME.public. One key for all
bound addresses, because a dialler knows an endpoint before it knows who is behind it; what a member may
pretend to be to another member is not what these keys guard against.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from mesh.errors import Insecure
from mesh.transport import CurveClient, CurveServer

DOMAIN = "specmesh"
MESH = "mesh"
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_KEY_BYTES = 40  # Z85 text of 32 bytes


def make_keys(folder: Path, names: Iterable[str]) -> list[str]:
    """Make the mesh's key and one for each name; those that exist stay. The names made, in order."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made: list[str] = []
    wanted = [MESH, *names]
    for name in wanted:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no key name: lower-case letters, digits and ._- are, at most 64")
    for name in wanted:
        if (folder / f"{name}.secret").exists():
            continue
        public, secret = zmq.curve_keypair()
        _write(folder / f"{name}.secret", secret, 0o600)
        _write(folder / f"{name}.public", public, 0o644)
        made.append(name)
    return made


def load_security(folder: Path, own_name: str) -> FolderSecurity:
    """The keys of one member. Raises Insecure with the file and the fix."""
    if not folder.is_dir():
        raise Insecure(f"no keys in {folder}: make them with `specmesh keys`")
    own_secret = _read_secret(folder / f"{own_name}.secret")
    own_public = _read_key(folder / f"{own_name}.public")
    if zmq.curve_public(own_secret) != own_public:
        raise Insecure(f"{folder}: {own_name}.public and {own_name}.secret are not a pair: make them anew")
    allowed = {_read_key(path) for path in sorted(folder.glob("*.public")) if path.name != f"{MESH}.public"}
    return FolderSecurity(folder, own_public, own_secret, frozenset(allowed))


class FolderSecurity:
    """Meets `mesh.transport.Security`."""

    def __init__(self, folder: Path, public_key: bytes, secret_key: bytes, allowed: frozenset[bytes]) -> None:
        self._folder = folder
        self._public_key = public_key
        self._secret_key = secret_key
        self._allowed = allowed

    def server(self) -> CurveServer:
        secret = _read_secret(self._folder / f"{MESH}.secret")
        public = _read_key(self._folder / f"{MESH}.public")
        if zmq.curve_public(secret) != public:
            raise Insecure(f"{self._folder}: mesh.public and mesh.secret are not a pair")
        return CurveServer(public, secret, self._allowed, DOMAIN)

    def client(self, endpoint: str) -> CurveClient:
        return CurveClient(self._public_key, self._secret_key, _read_key(self._folder / f"{MESH}.public"))


# Files ------------------------------------------------------------------------------------------------------


def _write(path: Path, key: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(key + b"\n")


def _read_secret(path: Path) -> bytes:
    try:
        found = path.stat()
    except OSError:
        raise Insecure(f"no {path}: make it with `specmesh keys`") from None
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise Insecure(f"{path} can be read by others: chmod 600 {path}")
    if found.st_uid not in (os.geteuid(), 0):
        raise Insecure(f"{path} belongs to another user: chown {os.geteuid()} {path}")
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            key = file.read(256).strip()
    except OSError as error:
        raise Insecure(f"{path} cannot be read ({error.strerror}): make it with `specmesh keys`") from None
    if len(key) != _KEY_BYTES:
        raise Insecure(f"{path} holds no key: make it anew with `specmesh keys`")
    return key


# Who may connect --------------------------------------------------------------------------------------------


def secure_server(socket: zmq.Socket[Any], keys: CurveServer) -> None:
    """To be called before bind. Without an Authenticator for its domain the socket lets nobody in."""
    socket.curve_server = 1
    socket.curve_publickey = keys.public_key
    socket.curve_secretkey = keys.secret_key
    socket.zap_domain = keys.domain.encode()
    # A missing authenticator must refuse, not admit.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def secure_client(socket: zmq.Socket[Any], keys: CurveClient) -> None:
    """To be called before connect."""
    socket.curve_serverkey = keys.server_key
    socket.curve_publickey = keys.public_key
    socket.curve_secretkey = keys.secret_key


class Authenticator:
    """Answers libzmq's question whether a peer's key may connect, for one context.

    A thread of its own, so that it works with blocking sockets and asyncio alike and a slow event loop
    doesn't look like a closed door. Only CURVE keys listed for a domain pass; anything else is denied.
    """

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        self._allowed: dict[bytes, frozenset[bytes]] = {}
        self._thread: threading.Thread | None = None
        self._control: zmq.Socket[bytes] | None = None
        self.denied = 0

    def allow(self, domain: str, keys: Iterable[bytes]) -> None:
        """Replaces the list of a domain. Keys are Z85 text, as in CurveServer.allowed."""
        self._allowed[domain.encode()] = frozenset(z85.decode(key) for key in keys)

    def start(self) -> None:
        """Raises Insecure when the context has an authenticator already."""
        if self._thread is not None:
            return
        door = self._context.socket(zmq.REP)
        door.linger = 0
        try:
            door.bind(ZAP_ENDPOINT)
        except zmq.ZMQError as error:
            door.close()
            raise Insecure(f"this context has another authenticator ({error})") from None
        stop, self._control = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        address = f"inproc://zap-control-{id(self)}"
        stop.linger = self._control.linger = 0
        stop.bind(address)
        self._control.connect(address)
        self._thread = threading.Thread(target=self._serve, args=(door, stop), name="zap", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """To be called before the context is terminated."""
        if self._thread is None or self._control is None:
            return
        self._control.send(b"")
        self._thread.join()
        self._control.close()
        self._thread = self._control = None

    def _serve(self, door: zmq.Socket[bytes], stop: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(door, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        try:
            while stop not in dict(poller.poll()):
                door.send_multipart(self.answer(door.recv_multipart()))
        except zmq.ContextTerminated:
            pass
        finally:
            door.close()
            stop.close()

    def answer(self, request: list[bytes]) -> list[bytes]:
        """ZAP 1.0: [version, id, domain, address, identity, mechanism, credentials...] to a reply."""
        request_id = request[1] if len(request) > 1 else b""
        if self._admits(request):
            return [b"1.0", request_id, b"200", b"OK", b"", b""]
        self.denied += 1
        return [b"1.0", request_id, b"400", b"not on the list", b"", b""]

    def _admits(self, request: list[bytes]) -> bool:
        if len(request) != 7 or request[0] != b"1.0" or request[5] != b"CURVE":
            return False
        return request[6] in self._allowed.get(request[2], frozenset())
