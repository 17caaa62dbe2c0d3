"""File descriptors: how many a process may open, and how many HTTP connections that leaves room for.

A process starts with the soft limit, often 1024, and may raise it to the hard one. Knows no sockets.
"""

from __future__ import annotations

import resource

# For everything but connections: sockets of the mesh and of /metrics, files, connections that are being refused.
KEPT = 192


def room_for(wanted: int, *, limit: int) -> int:
    """How many of the `wanted` connections fit when `limit` descriptors may be open."""
    return max(1, min(wanted, limit - min(KEPT, limit // 2)))


def hard_limit() -> int:
    return _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def make_room_for(wanted: int) -> int:
    """Raises the soft limit as far as `wanted` connections need and the hard one allows; how many of them fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _finite(soft)
    if limit < (needed := min(wanted + KEPT, _finite(hard))):
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        limit = needed
    return room_for(wanted, limit=limit)


def _finite(limit: int) -> int:
    """Without a limit the kernel has one all the same, and nobody wants as many connections."""
    return 2**30 if limit == resource.RLIM_INFINITY else limit
