"""Endpoints and routing ids: what may be bound or dialled, and how a node names itself to a socket."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mesh.errors import Insecure

# The kernel keeps a socket's path in 108 bytes, the last of them zero.
IPC_PATH_BYTES = 107
LOCAL_SCHEMES = frozenset({"ipc", "inproc", "mem"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,119}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`ipc:///path`, `tcp://host:port`, `inproc://name` or, in memory, `mem://name`."""

    scheme: str
    rest: str

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Raises ValueError with what is wrong."""
        scheme, separator, rest = text.partition("://")
        if not separator or not rest:
            raise ValueError(f"{text!r} is no endpoint: expected ipc:///path or tcp://host:port")
        if scheme == "ipc" and len(rest.encode()) > IPC_PATH_BYTES:
            raise ValueError(f"{text!r}: a socket path holds at most {IPC_PATH_BYTES} bytes")
        if scheme == "tcp":
            port = rest.rpartition(":")[2]
            if not rest.rpartition(":")[0] or not (port == "*" or (port.isdigit() and int(port) < 65536)):
                raise ValueError(f"{text!r} has no valid port: expected tcp://host:port")
        elif scheme not in LOCAL_SCHEMES:
            raise ValueError(f"{text!r}: {scheme} is not supported, only ipc and tcp are")
        return cls(scheme, rest)

    @property
    def needs_keys(self) -> bool:
        """Whether bytes could leave this host, or come from another one."""
        return self.scheme not in LOCAL_SCHEMES

    def __str__(self) -> str:
        return f"{self.scheme}://{self.rest}"


def require_keys(endpoint: Endpoint, have_keys: bool, verb: str) -> None:
    """The rule of mesh security: no address that is not local is bound or dialled without CURVE keys."""
    if endpoint.needs_keys and not have_keys:
        raise Insecure(f"will not {verb} {endpoint} without keys: make them with `specmesh keys` or use ipc")


def check_name(name: str) -> str:
    """A node's name is part of its routing id. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no node name: letters, digits and ._@- are, at most 120 of them")
    return name


def routing_id(name: str, epoch: int, number: int) -> bytes:
    """How an acceptor knows a dialler's connection: a restart (epoch) or a new socket (number) makes a new one."""
    return f"{name}|{epoch:x}|{number}".encode()
