"""Where the nodes of a split worker meet, by the settings."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from services.api.nodes import meeting_address
from services.api.settings import Settings

_PURPOSE = b"specmesh nodes"


@dataclass(frozen=True, slots=True)
class Meeting:
    """The address, how many nodes there are, and what they alone know."""

    host: str
    port: int
    nodes: int
    secret: bytes


def meeting_of(settings: Settings) -> Meeting | None:
    """None: there is but one node. Raises Insecure."""
    if settings.nnodes == 1:
        return None
    secret = b""
    if settings.keys_dir:
        from mesh.security import mesh_secret_of

        secret = blake2b(mesh_secret_of(Path(settings.keys_dir)), digest_size=32, person=_PURPOSE).digest()
    return Meeting(*meeting_address(settings.master_addr, settings.master_port), settings.nnodes, secret)
