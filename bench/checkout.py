"""An older commit of this repository, ready to run: its files, and an environment made by its own deploy/venv.py.

Both stay in the user's cache between runs, in a folder named after what decides the packages: pyproject.toml,
constraints.txt and the interpreter. Another commit with the same packages takes the folder over with its environment,
so only the first run installs. An editable installation holds its folder's path, so the path has to stay the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.rows import ROOT

DECIDE_PACKAGES = ("pyproject.toml", "constraints.txt")
VENV = ".venv"
# Names the commit whose files lie in the folder; written last.
STAMP = ".commit"


class Checkout(NamedTuple):
    commit: str
    root: Path

    @property
    def specmesh(self) -> list[str]:
        return [str(self.root / VENV / "bin" / "specmesh")]


@contextmanager
def checked_out(name: str, cache: Path | None = None, repository: Path = ROOT) -> Iterator[Checkout]:
    """`name`: a commit, branch or tag. The folder is locked: a second comparison would change the files below us."""
    commit = resolve(name, repository)
    root = (cache or user_cache() / "bench") / fingerprint(commit, repository)
    root.mkdir(parents=True, exist_ok=True)
    with root.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unpack(commit, root, repository)
        install(root)
        yield Checkout(commit, root)


def user_cache() -> Path:
    """Where specmesh keeps models by default; read here without what settings import."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmesh"


def resolve(name: str, repository: Path = ROOT) -> str:
    command = ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{name} is no commit of {repository}")
    return found.stdout.strip()


def fingerprint(commit: str, repository: Path = ROOT) -> str:
    """Of what decides the packages; a file that isn't there is an empty one."""
    digest = hashlib.sha256(sys.version.encode())
    for name in DECIDE_PACKAGES:
        shown = subprocess.run(["git", "show", f"{commit}:{name}"], cwd=repository, capture_output=True)
        digest.update(shown.stdout + b"\0")
    return digest.hexdigest()[:16]


def unpack(commit: str, root: Path, repository: Path = ROOT) -> None:
    """Replaces the files of another commit; the environment stays."""
    stamp = root / STAMP
    if stamp.exists() and stamp.read_text() == commit:
        return
    stamp.unlink(missing_ok=True)
    for path in root.iterdir():
        if path.name.startswith(VENV):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    packed = subprocess.run(["git", "archive", "--format=tar", commit], cwd=repository, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(root, filter="data")
    stamp.write_text(commit)


def install(root: Path) -> None:
    """The environment's own stamp makes this return at once when nothing changed."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run([base_python(), "deploy/venv.py", "--venv", root / VENV], cwd=root, env=environment)
    if done.returncode:
        raise SystemExit(f"{root}/deploy/venv.py failed")


def base_python() -> str:
    """The interpreter that this virtual environment was made with."""
    return getattr(sys, "_base_executable", sys.executable)
