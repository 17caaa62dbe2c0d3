"""The secret with which the workers of a mesh name pages, so that all of them have the same names.

With CURVE keys it follows from the mesh's own, which every member's host has and nobody else. Without keys all
processes are on one machine: it is a file in run_dir, which only this user can read; the first worker makes it. It is
never sent: what travels is a name of it (`name_of`), by which two workers see that theirs are the same.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

from mesh.security import mesh_secret_of
from services.worker.cache.keys import SECRET_BYTES

FILE = "pages.secret"
_PURPOSE = b"specmesh pages"
_NAME = b"specmesh name"


def page_secret(keys_dir: str, run_dir: Path) -> bytes:
    """Raises Insecure or OSError."""
    if keys_dir:
        shared = mesh_secret_of(Path(keys_dir))
        return blake2b(shared, digest_size=SECRET_BYTES, person=_PURPOSE).digest()
    path = run_dir / FILE
    found = _read(path)
    if len(found) != SECRET_BYTES:
        found = _make(path)
    return found


def name_of(secret: bytes) -> str:
    return blake2b(_NAME, digest_size=8, key=secret).hexdigest()


def _read(path: Path) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read(SECRET_BYTES + 1)
    except FileNotFoundError:
        return b""


def _make(path: Path) -> bytes:
    """Several workers may start at once: one of them makes it, whole, and the others read it."""
    own = path.with_name(f"{FILE}.{os.getpid()}")
    own.unlink(missing_ok=True)
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(os.urandom(SECRET_BYTES))
    try:
        # A broken one is replaced; else the first stays.
        if len(_read(path)) not in (0, SECRET_BYTES):
            path.unlink(missing_ok=True)
        os.link(own, path)
    except FileExistsError:
        pass
    finally:
        own.unlink()
    found = _read(path)
    if len(found) != SECRET_BYTES:
        raise OSError(f"{path} is no secret: remove it")
    return found
