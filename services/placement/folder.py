"""The folder of one process on a machine of a cluster: its keys, its run_dir, where the directory is. Ours alone,
and removed with the process that made it; what a killed one has left is removed by the next that starts here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mesh.security import MESH

# Of the secrets' names: the streamer's API keys, which aren't of the mesh.
API_KEYS = "api_keys"


def prefix() -> str:
    return f"specmesh-ray-{os.getuid()}-"


class OwnFolder:
    """Named by this process, and held by a lock, which the kernel releases however we end."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_left(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{prefix()}{os.getpid()}-", dir=parent))
        self._lock = _opened(self.path)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def directory(self) -> Path:
        return self.path / "directory"

    @property
    def api_keys(self) -> Path:
        return self.path / API_KEYS

    def write_secrets(self, secrets: Mapping[str, str]) -> None:
        """By file name. Each can be read by this user alone."""
        self.keys.mkdir(mode=0o700)
        for name, text in secrets.items():
            file = self.api_keys if name == API_KEYS else self.keys / Path(name).name
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
                opened.write(text)

    def tell_directory(self, endpoint: str) -> None:
        """Others read it at any time: it is replaced whole."""
        fresh = self.directory.with_suffix(".new")
        fresh.write_text(endpoint + "\n", "utf-8")
        fresh.replace(self.directory)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left(parent: Path) -> None:
    """The folders of processes of this user that were killed. One that lives hasn't locked its own yet, perhaps; one of
    another container isn't seen to live, but has."""
    for folder in parent.glob(prefix() + "*"):
        pid = folder.name.removeprefix(prefix()).partition("-")[0]
        if Path(f"/proc/{pid}").exists():
            continue
        try:
            lock = _opened(folder)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def secrets_for(role: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """What a role's watcher gets: the mesh's pair, the role's own, everyone's public keys; the streamer's also the API
    keys."""
    mine = {f"{MESH}.secret", f"{role}.secret", *([API_KEYS] if role == "streamer" else [])}
    return {name: text for name, text in secrets.items() if name in mine or name.endswith(".public")}


def read_keys(folder: Path) -> dict[str, str]:
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".public", ".secret")]
    return {file.name: file.read_text("utf-8") for file in files}
