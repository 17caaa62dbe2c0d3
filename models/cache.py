"""The folder that made and fetched models are kept in: room, locks, and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from models.errors import ModelError

Progress = Callable[[str, int, int], None]
_SPARE_BYTES = 64 << 20


@contextlib.contextmanager
def locked(cache: Path, name: str, progress: Progress | None) -> Iterator[None]:
    """One process makes a folder; others wait. The kernel frees the lock of a process that dies."""
    make_writable(cache)
    with (cache / f".{name}.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if progress:
                progress("wait", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def scratch_beside(place: Path) -> Iterator[Path]:
    """A temporary folder on the same file system; what an interrupted try left behind goes first."""
    place.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{place.name}.partial-"
    for stale in place.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=prefix) as scratch:
        yield Path(scratch)


def put(made: Path, place: Path, scratch: Path) -> None:
    """A folder made in the scratch folder takes its place."""
    if place.exists():  # of an older converter, or damaged since
        place.rename(scratch / "replaced")
    made.rename(place)


def make_writable(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{cache} cannot be made: {error}", "set cache_dir to a folder you may write") from error
    if not os.access(cache, os.W_OK):
        raise ModelError(f"{cache} is not writable", "set cache_dir to a folder you may write")


def check_disk(cache: Path, wanted: int) -> None:
    free = shutil.disk_usage(cache).free
    if free < wanted + _SPARE_BYTES:
        raise ModelError(
            f"{cache} has {free >> 20} MB free, {(wanted + _SPARE_BYTES) >> 20} MB are needed",
            "free some space, or set cache_dir to another disk",
        )
