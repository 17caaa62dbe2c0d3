"""A watcher alone, with a tiny role: it waits for the directory's address, restarts, drains, and leaves nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from watching import gone, wait_until

from mesh.security import make_keys
from services.api.settings import ROLES, Settings, to_environment
from services.placement.folder import API_KEYS, OwnFolder, prefix, read_keys, remove_left, secrets_for
from services.placement.watcher import Orders, Report, RoleWatcher

ROOT = Path(__file__).parents[3]
TINY_ROLE = str(Path(__file__).resolve().parents[1] / "runtime" / "tiny_role.py")
LONG = 30.0  # s


def told(directory: str = "", **more: Any) -> Orders:
    return {  # type: ignore[return-value]
        "directory": directory, "pid": 0, "ready": False, "lost": False, "desired": {"worker": 2},
        "numbers": {"worker": 2}, "old": [], **more,
    }  # fmt: skip


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, str]:
    make_keys(tmp_path / "made", [*ROLES, "directory"])
    return {**read_keys(tmp_path / "made"), API_KEYS: "one\n"}


@pytest.fixture
def watcher(tmp_path: Path, secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[RoleWatcher]:
    (tmp_path / "machine").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "machine"))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    command = (sys.executable, TINY_ROLE, "worker")
    environment = to_environment(Settings.for_tests(drain_timeout=5.0, metrics_port=0, threads=2))
    made = RoleWatcher("worker", "worker-41", environment, secrets_for("worker", secrets), "n1", "127.0.0.1", command)
    yield made
    made.drain()
    assert wait_until(lambda: made.tick(told())["ended"], LONG)


def running(watcher: RoleWatcher, but: int = 0) -> Report:
    found: list[Report] = []

    def there() -> bool:
        found[:] = [watcher.tick(told("tcp://127.0.0.1:9"))]
        return found[0]["pid"] not in (0, but)

    assert wait_until(there, LONG)
    return found[0]


def test_it_starts_its_process_once_it_is_told_where_the_directory_is(watcher: RoleWatcher, tmp_path: Path) -> None:
    assert watcher.tick(told())["pid"] == 0
    report = running(watcher)
    assert (report["role"], report["instance"], report["machine"]) == ("worker", "worker-41", "n1")
    assert (report["desired"], report["numbers"]) == ({"worker": 2}, {"worker": 2})
    environment = b""
    while not environment:  # between fork and exec
        environment = Path(f"/proc/{report['pid']}/environ").read_bytes()
    (folder,) = (tmp_path / "machine").glob(prefix() + "*")
    assert f"SPECMESH_DIRECTORY=file://{folder}/directory".encode() in environment
    assert b"SPECMESH_BIND=tcp://127.0.0.1:0" in environment and b"OMP_NUM_THREADS=2" in environment
    assert (folder / "directory").read_text() == "tcp://127.0.0.1:9\n"
    watcher.tick(told("tcp://127.0.0.1:10"))
    assert (folder / "directory").read_text() == "tcp://127.0.0.1:10\n"


def test_a_crashed_process_is_started_again_and_a_lost_one_is_replaced(watcher: RoleWatcher) -> None:
    first = running(watcher)["pid"]
    os.kill(first, signal.SIGKILL)
    second = running(watcher, but=first)["pid"]
    watcher.tick(told("tcp://127.0.0.1:9", pid=second, lost=True))
    assert running(watcher, but=second)["pid"] != first


def test_a_drained_host_ends_with_its_process_and_its_folder(watcher: RoleWatcher, tmp_path: Path) -> None:
    pid = running(watcher)["pid"]
    watcher.drain()
    assert wait_until(lambda: watcher.tick(told("tcp://127.0.0.1:9"))["ended"], LONG)
    assert gone(pid)
    assert wait_until(lambda: not list((tmp_path / "machine").glob(prefix() + "*")), LONG)


def test_a_host_that_never_started_anything_ends_at_once(watcher: RoleWatcher, tmp_path: Path) -> None:
    watcher.drain()
    assert watcher.tick(told("tcp://127.0.0.1:9"))["ended"]
    assert not list((tmp_path / "machine").glob(prefix() + "*"))


@pytest.mark.parametrize(
    ("role", "settings", "threads"),
    [
        ("worker", {"worker_cpus": 2.5}, 3),
        ("worker", {"worker_cpus": 2.5, "threads": 5}, 5),
        ("proposer", {"worker_cpus": 2.5}, 0),
    ],
)
def test_a_worker_computes_with_the_cpus_that_were_set_aside(
    role: str,
    settings: dict[str, Any],
    threads: int,
    tmp_path: Path,
    secrets: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = to_environment(Settings.for_tests(**settings))
    made = RoleWatcher(role, f"{role}-1", environment, secrets_for(role, secrets), "n1", "127.0.0.1")
    assert made._settings.threads == threads
    made.drain()


# Its folder ----------------------------------------------------------------------------------------------------------


def test_a_role_gets_its_own_secret_and_the_streamer_the_api_keys(secrets: dict[str, str]) -> None:
    public = {f"{name}.public" for name in (*ROLES, "directory", "mesh")}
    assert set(secrets_for("worker", secrets)) == {*public, "mesh.secret", "worker.secret"}
    assert set(secrets_for("streamer", secrets)) == {*public, "mesh.secret", "streamer.secret", API_KEYS}


def test_secrets_are_files_that_only_we_can_read_and_stay_in_the_folder(
    tmp_path: Path, secrets: dict[str, str]
) -> None:
    folder = OwnFolder(tmp_path)
    folder.write_secrets({**secrets, "../outside.secret": "x"})
    files = [file for file in folder.path.rglob("*") if file.is_file()]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert not (tmp_path / "outside.secret").exists() and not (folder.path / "outside.secret").exists()
    folder.remove()
    assert not folder.path.exists()


def test_what_a_killed_process_has_left_is_removed_and_what_is_in_use_stays(tmp_path: Path) -> None:
    def made(pid: int, name: str) -> Path:
        folder = tmp_path / f"{prefix()}{pid}-{name}"
        folder.mkdir()
        (folder / "keys").mkdir()
        return folder

    mine, ended = OwnFolder(tmp_path), subprocess.Popen(["true"])
    ended.wait()
    left, held, fresh = made(ended.pid, "left"), made(ended.pid, "held"), made(os.getpid(), "fresh")
    (tmp_path / f"{prefix()}{ended.pid}-link").symlink_to(fresh)
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    remove_left(tmp_path)
    assert not left.exists()
    # Of a process that isn't seen, in another container; of one that has just begun; this test's.
    assert held.exists() and fresh.exists() and mine.path.exists()
    os.close(lock)
    mine.remove()
