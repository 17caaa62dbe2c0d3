"""`specmesh keys`: the CURVE keys of a mesh on several machines. Their format: mesh/security.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from services.api.nodes import WORKER_NODE
from services.api.settings import ROLES, Settings, default_file


def keys_folder(settings: Settings) -> Path:
    """The default folder of keys."""
    return Path(settings.keys_dir) if settings.keys_dir else default_file(os.environ).parent / "keys"


def make(names: list[str], settings: Settings) -> int:
    from mesh.security import make_keys

    folder = keys_folder(settings)
    try:
        made = make_keys(folder, names or (*ROLES, WORKER_NODE))
    except (OSError, ValueError) as error:
        print(f"specmesh: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: made {', '.join(made)}" if made else f"{folder}: every key was there already")
    if not settings.keys_dir:
        print(f"Start every process with --keys-dir {folder} (or SPECMESH_KEYS_DIR).")
    print("A member's host needs mesh.*, its own NAME.* and every NAME.public; never another's NAME.secret.")
    return 0


def show(names: list[str], settings: Settings) -> int:
    """Names and public keys; of secrets only whether they exist."""
    folder = keys_folder(settings)
    public = sorted(folder.glob("*.public")) if folder.is_dir() else []
    if not public:
        print(f"specmesh: no keys in {folder}\n  fix: specmesh keys make", file=sys.stderr)
        return 1
    print(f"{folder}:")
    for file in public:
        if not names or file.stem in names:
            secret = "pair" if file.with_suffix(".secret").exists() else "let in"
            print(f"  {file.stem:<16} {secret:<7} {file.read_text(errors='replace').strip()}")
    return 0


ACTIONS: dict[str, Callable[[list[str], Settings], int]] = {"make": make, "show": show}
