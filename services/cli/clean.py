"""`specmesh clean`: what stays on this machine when the package is gone, with sizes; with --yes it is removed.

Only what specmesh makes is touched, by its names: whatever else is in these folders stays, and so do settings files and
keys. Links are removed, never what they lead to.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.api.settings import Settings, cache_dir, default_file, run_dir, sockets_in, store_dir
from services.runtime.refusal import refuse
from specmesh import rooms

LIBRARY = re.compile(r"\d+-[0-9a-f]{32}")
IN_RUN_DIR = ("*.sock", "*.pid", "epoch", "up.lock", "api_keys", "logs")


@dataclass(frozen=True, slots=True)
class Left:
    """Something that an uninstall leaves."""

    what: str
    path: Path

    @property
    def bytes(self) -> int:
        """On disk; what goes away while we look counts as nothing."""
        files = [self.path, *self.path.rglob("*")] if _is_folder(self.path) else [self.path]
        return sum(_bytes(each) for each in files)


def main(options: argparse.Namespace, settings: Settings) -> int:
    user = in_use(settings)
    if options.yes and user:
        return refuse(f"{user}\n  fix: stop it first (Ctrl-C in its terminal, or kill PID), then call this again")
    left = [each for each in found(settings) if not (options.keep_models and each.what == "model")]
    for each in left:
        print(f"{each.what:<14} {_size(each.bytes):>10}  {each.path}")
    together = _size(sum(each.bytes for each in left))
    if not left:
        print("nothing is left of specmesh in its folders")
    elif options.yes:
        failed = [problem for each in left if (problem := remove(each.path))]
        for problem in failed:
            refuse(problem)
        if failed:
            return 1
        print(f"removed {together}")
    else:
        first = f"{user}: stop it, then " if user else ""
        print(f"{together} together. Nothing was removed: {first}give --yes as well to remove this.")
    _tell_kept(settings)
    if options.yes:
        _remove_empty(settings)
    return 0


def _remove_empty(settings: Settings) -> None:
    """The folders themselves, unless something else is in them."""
    cache, store = cache_dir(settings), store_dir(settings)
    for folder in (cache / "models", cache / "hub", store, cache, run_dir(settings)):
        if folder is not None and _is_folder(folder) and not any(folder.iterdir()):
            folder.rmdir()


def found(settings: Settings) -> Iterator[Left]:
    cache, store, runs = cache_dir(settings), store_dir(settings), run_dir(settings)
    for folder in (cache / "models", cache / "hub"):
        # Each by its name; a folder that is a link is one thing.
        yield from (Left("model", each) for each in _in(folder) or _there(folder))
    yield from (Left("download", each) for each in _there(cache / "downloads"))
    yield from (Left("lock", each) for each in _in(cache) if each.match(".*.lock"))
    yield from (Left("compiled loops", each) for place in _compiled() for each in _there(place))
    if store is not None:
        yield from (Left("learned text", each) for each in _in(store) if LIBRARY.fullmatch(each.name))
    yield from (Left("run file", each) for name in IN_RUN_DIR for each in sorted(runs.glob(name)))


def _compiled() -> Iterator[Path]:
    """As in kernels/cpu_cache.py."""
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmesh" / "compiled"
    if rooms.is_installed():
        # pip removes only the files that it installed, and the folders that are empty then.
        yield rooms.FOLDER / "kernels" / "__pycache__" / "compiled"


def in_use(settings: Settings) -> str:
    """Which mesh uses these folders; empty: none that can be seen."""
    folder = run_dir(settings)
    if _is_locked(folder / "up.lock") or any(_answers(each) for each in sockets_in(folder)):
        return f"a mesh is running in {folder}"
    store = store_dir(settings)
    for lock in sorted(store.glob("*/lock")) if store is not None else ():
        if _is_locked(lock):
            return f"a proposer is using {store}"
    return ""


def remove(path: Path) -> str:
    """What kept it from being removed; empty: it is gone."""
    try:
        shutil.rmtree(path) if _is_folder(path) else path.unlink(missing_ok=True)
    except OSError as error:
        return f"{path} cannot be removed: {error.strerror or error}\n  fix: rm -r it as user {_owner(path)}"
    return ""


def _tell_kept(settings: Settings) -> None:
    file = default_file(os.environ)
    keys = Path(settings.keys_dir) if settings.keys_dir else file.parent / "keys"
    kept = [str(each) for each in (file, keys) if each.exists()]
    if kept:
        print(f"Your own settings and keys stay: {', '.join(kept)}")


def _in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if _is_folder(folder) else []


def _there(path: Path) -> list[Path]:
    return [path] if path.is_symlink() or path.exists() else []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def _owner(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except OSError:
        return os.geteuid()


def _is_locked(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
