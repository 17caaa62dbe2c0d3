"""Where the rooms of the code are (mesh, kernels, models, services, loadtest), and how a process finds them.

    a checkout                     an installation
    specmesh/                      site-packages/specmesh/
    mesh/  kernels/  models/       site-packages/specmesh/_rooms/mesh/  kernels/  models/
    services/  loadtest/                                         services/  loadtest/

Rooms import each other by their own names, which others have, too. So each process of specmesh puts their folder before
everything else on its own path, also before PYTHONPATH and the current directory. No environment variable is changed:
other processes find what they find without specmesh. Every process of specmesh that isn't started by a person is
started with `command`:

    python -P specmesh/rooms.py MODULE WORD...       runs a room's module

Imports nothing of specmesh, because this file is also run by its path.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_FILE = Path(__file__).resolve()
_INSTALLED = _FILE.with_name("_rooms")
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _FILE.parents[1]


def is_installed() -> bool:
    """False in a checkout, also where one is installed with pip -e."""
    return FOLDER == _INSTALLED


def put_first() -> None:
    sys.path[:] = [str(FOLDER), *(place for place in sys.path if place != str(FOLDER))]


def command(module: str, *words: str) -> tuple[str, ...]:
    """The command line of a process that runs a room's module."""
    # -P: neither this file's folder nor the current directory is searched for modules.
    return (sys.executable, "-P", str(_FILE), module, *words)


def _run(module: str) -> None:
    put_first()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # The module reads its own words from sys.argv[1:].
    del sys.argv[0]
    _run(sys.argv[0])
