"""Which mesh a command on this machine is about: that of the `up` that runs in the run_dir, or one on a Ray cluster."""

from __future__ import annotations

import fcntl
from pathlib import Path

from services.api.settings import Settings, run_dir
from services.cli.chat import ChatError

# In run_dir: the address of the Ray that `up --on ray` runs on.
ADDRESS = "ray_address"


def supervisor_of(folder: Path) -> int:
    """The pid of the `up` that runs in this folder: the one that holds its lock. Raises ChatError."""
    try:
        with (folder / "up.lock").open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read(20))
    except (FileNotFoundError, ValueError):
        pass
    raise ChatError(f"no mesh of `specmesh up` runs in {folder} (--run-dir names another folder)")


def cluster_of(settings: Settings) -> str:
    """The Ray cluster that is named, else that of the `up` of this machine with the same run_dir; "": there is none."""
    if settings.ray_address:
        return str(settings.ray_address)
    try:
        return (run_dir(settings) / ADDRESS).read_text("utf-8").strip()
    except OSError:
        return ""


def is_on_ray(settings: Settings) -> bool:
    """An `up --on ray` that was killed has left its address, and its mesh; one of this machine may have come since."""
    if not cluster_of(settings):
        return False
    try:
        supervisor_of(run_dir(settings))
    except ChatError:
        return True
    return bool(settings.ray_address)
