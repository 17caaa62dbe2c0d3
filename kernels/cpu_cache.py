"""Where compiled loops are kept on disk, so that code of another state of the sources is never found.

numba looks up code by the function's own file, and by the processor's name and features. But a loop has what it
calls compiled into it: after an edit of an imported file, numba would go on with the old arithmetic. So the code of
a module lies in a folder that is named by everything that went into it, the module and all it imports of kernels/ and
of the other package with loops:

    <root>/compiled/kernels.linear.cpu-0f3a…/

The root is NUMBA_CACHE_DIR, the folder of the sources, or the user's cache: the first that can be written. Where
none can, code is compiled at every start.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba

_PACKAGE = Path(__file__).parent
# What compiled loops import from: names of packages beside this one.
_FOLLOWED = (_PACKAGE.name, "services.proposer")
# A build for tests, too (kernels/amx.py).
AMX_SWITCH = "EMULATED_AMX"
EMULATED_AMX = os.environ.get(AMX_SWITCH) == "1"
# Folders of a module: going back and forth between two versions costs nothing.
_KEPT = 3
_lock = threading.Lock()


def kept_on_disk(function: Callable[..., Any]) -> AbstractContextManager[bool]:
    """Decorate inside, with cache= what it gives: whether code can be kept.

    The sources are looked at now. What waits until a function is compiled may see newer ones than were imported.
    """
    return _kept_in(_folder(inspect.getfile(function)))


def on_disk(function: Callable[..., Any]) -> bool:
    """Whether code of a compiled function is kept; perhaps for another processor."""
    plain = getattr(function, "py_func", function)
    folder = _folder(inspect.getfile(plain))
    return folder is not None and any(folder.rglob(f"*.{plain.__name__}-*.nbi"))


@contextmanager
def _kept_in(folder: Path | None) -> Iterator[bool]:
    if folder is None:
        yield False
        return
    # numba reads it when a function is decorated, and then never again for that function.
    with _lock:
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
        try:
            yield True
        finally:
            numba.config.CACHE_DIR = before


@functools.cache
def _folder(file: str) -> Path | None:
    """Where the code of a file's functions lies."""
    place, path = root(), Path(file).resolve()
    if place is None or not path.is_file():
        return None
    base = _PACKAGE.parent
    name = ".".join((path.relative_to(base) if path.is_relative_to(base) else path).with_suffix("").parts)
    folder = place / f"{name.strip('/.')}-{digest(path)}"
    _remove_old(place, folder)
    return folder


def digest(path: Path) -> str:
    """Of a file, of all it imports from here, and of what compiles them."""
    found = hashlib.sha256(f"numba {numba.__version__}, llvmlite {llvmlite.__version__}".encode())
    if numba.config.BOUNDSCHECK:  # NUMBA_BOUNDSCHECK=1: a build for tests
        found.update(b"bounds")
    if EMULATED_AMX:
        found.update(b"emulated AMX")
    for source in sorted(_sources(path)):
        found.update(source.name.encode() + b"\0" + hashlib.sha256(source.read_bytes()).digest())
    return found.hexdigest()[:16]


def _sources(path: Path) -> set[Path]:
    found, waiting = set(), [path]
    while waiting:
        source = waiting.pop()
        if source not in found:
            found.add(source)
            waiting += _imports(source)
    return found


@functools.cache
def _imports(path: Path) -> list[Path]:
    """Files of kernels/, and of what else has loops, that a file imports at its top."""
    names: list[str] = []
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            # What is imported may be a module itself.
            names += [statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)]
    inside = [name.split(".") for name in names if any(name.startswith(f"{package}.") for package in _FOLLOWED)]
    files = [_PACKAGE.parent.joinpath(*parts).with_suffix(".py") for parts in inside]
    return [file for file in files if file.is_file()]


@functools.cache
def root() -> Path | None:
    """None: nowhere."""
    for place in _places():
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=place).close()
            return place
    return None


def _places() -> Iterator[Path]:
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR) / "compiled"
    yield _PACKAGE / "__pycache__" / "compiled"
    with suppress(RuntimeError):
        # RuntimeError: nobody's home.
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmesh" / "compiled"


def _remove_old(root: Path, folder: Path) -> None:
    """The module's folders of other states, but for the latest. A process that still uses one compiles again."""
    stem = folder.name.rpartition("-")[0]
    with suppress(OSError):
        others = [one for one in root.glob(f"{stem}-*") if one.name.rpartition("-")[0] == stem and one != folder]
        others.sort(key=lambda one: one.stat().st_mtime, reverse=True)
        for one in others[_KEPT - 1 :]:
            shutil.rmtree(one, ignore_errors=True)
