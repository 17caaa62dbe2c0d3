"""CURVE keys in a folder, and who may connect. Knows files; the transports know sockets and the handshake.

    keys/
      mesh.public  mesh.secret       the key every bound address shows
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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import zmq

from mesh.errors import Insecure

DOMAIN = "specmesh"
MESH = "mesh"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_KEY_BYTES = 40  # Z85 text of 32 bytes


@dataclass(frozen=True, slots=True)
class CurveServer:
    """Keys of a bound address, as Z85 text (40 bytes), and who may connect."""

    public_key: bytes
    secret_key: bytes
    allowed: frozenset[bytes]  # public keys of clients, Z85
    domain: str = "specmesh"


@dataclass(frozen=True, slots=True)
class CurveClient:
    """Keys of a dialled address, as Z85 text."""

    public_key: bytes
    secret_key: bytes
    server_key: bytes


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


def mesh_secret_of(folder: Path) -> bytes:
    """The secret half of the mesh's key, from which members may derive what they all know. Raises Insecure."""
    return _read_secret(folder / f"{MESH}.secret")


class FolderSecurity:
    """The keys of one member."""

    def __init__(self, folder: Path, public_key: bytes, secret_key: bytes, allowed: frozenset[bytes]) -> None:
        self._folder = folder
        self._public_key = public_key
        self._secret_key = secret_key
        self._allowed = allowed

    def server(self) -> CurveServer:
        """Called at every bind of an address that leaves the host. Raises Insecure when there are no keys."""
        secret = _read_secret(self._folder / f"{MESH}.secret")
        public = _read_key(self._folder / f"{MESH}.public")
        if zmq.curve_public(secret) != public:
            raise Insecure(f"{self._folder}: mesh.public and mesh.secret are not a pair")
        return CurveServer(public, secret, self._allowed, DOMAIN)

    def client(self) -> CurveClient:
        """Called at every dial of such an address. Raises Insecure when there are no keys."""
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
