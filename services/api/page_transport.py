"""The setting page_transport, and the library that `nixl` needs: looked for before a worker loads its model."""

from __future__ import annotations

import importlib.util

MESH, NIXL = TRANSPORTS = ("mesh", "nixl")
INSTALL = (
    "page_transport nixl needs NIXL, which isn't installed: in a checkout of specmesh, make nixl or"
    " pip install '.[nixl]'; or leave page_transport at mesh"
)


class NoNixl(ValueError):
    """It isn't installed, or it doesn't start. The message says what to do."""


def require_nixl(transport: str) -> None:
    """Raises NoNixl where the setting asks for what isn't there. Imports nothing."""
    if transport == NIXL and importlib.util.find_spec("nixl") is None:
        raise NoNixl(INSTALL)
