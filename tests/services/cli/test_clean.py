"""`specmesh clean`: lists, then removes what is ours, and nothing else."""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path

import pytest

from services.cli.main import main

LIBRARY = "2-" + "0f" * 16


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache, a store and a run_dir, with what is ours and what isn't."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("SPECMESH_CONFIG", raising=False)
    for name in ("models/small/weights", f"store/{LIBRARY}/lock", "compiled/x.nbi", "downloads/y.whl"):
        write(tmp_path / "cache/specmesh" / name)
    write(tmp_path / "run/specmesh/logs/worker-1.log")
    write(tmp_path / "run/specmesh/up.lock")
    write(tmp_path / "config/specmesh/config.toml", "")
    return tmp_path


def write(path: Path, text: str = "something") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_is_removed_without_yes(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(machine.rglob("*"))
    assert main(["clean"]) == 0
    assert sorted(machine.rglob("*")) == before
    told = capsys.readouterr().out
    for what in ("models/small", f"store/{LIBRARY}", "compiled", "downloads", "logs", "up.lock"):
        assert what in told
    assert "learned text" in told and "give --yes as well" in told


def test_with_yes_all_of_it_goes_but_settings(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", "--yes"]) == 0
    assert [each for each in machine.rglob("*") if each.is_file()] == [machine / "config/specmesh/config.toml"]
    assert not (machine / "cache/specmesh").exists() and not (machine / "run/specmesh").exists()
    assert str(machine / "config/specmesh/config.toml") in capsys.readouterr().out
    assert main(["clean"]) == 0
    assert "nothing is left" in capsys.readouterr().out


def test_models_can_be_kept(machine: Path) -> None:
    assert main(["clean", "--yes", "--keep-models"]) == 0
    assert (machine / "cache/specmesh/models/small/weights").exists()
    assert not (machine / "cache/specmesh/store").exists()


def test_what_others_put_there_stays(machine: Path) -> None:
    own = [machine / "cache/specmesh/notes.txt", machine / "cache/specmesh/store/mine", machine / "run/specmesh/x"]
    for each in own:
        write(each)
    assert main(["clean", "--yes"]) == 0
    assert all(each.read_text() == "something" for each in own)


def test_links_are_removed_and_what_they_lead_to_stays(machine: Path) -> None:
    write(machine / "elsewhere/big/weights")
    (machine / "cache/specmesh/models/linked").symlink_to(machine / "elsewhere/big")
    (machine / "cache/specmesh/hub").symlink_to(machine / "elsewhere")
    assert main(["clean", "--yes"]) == 0
    assert (machine / "elsewhere/big/weights").exists()
    assert not (machine / "cache/specmesh").exists()


@pytest.mark.parametrize("lock", ["run/specmesh/up.lock", f"cache/specmesh/store/{LIBRARY}/lock"])
def test_a_mesh_in_use_is_left_alone_until_it_is_stopped(
    machine: Path, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (machine / lock).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["clean", "--yes"]) == 1
        assert "fix: stop it first" in capsys.readouterr().err
        assert (machine / "cache/specmesh/models/small/weights").exists()
        assert main(["clean"]) == 0
        assert "stop it, then give --yes" in capsys.readouterr().out
    assert main(["clean", "--yes"]) == 0


def test_a_process_without_up_is_seen_by_its_socket(machine: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(machine / "run/specmesh/worker.sock"))
        listener.listen(1)
        assert main(["clean", "--yes"]) == 1
    # It was killed, and left its socket.
    assert main(["clean", "--yes"]) == 0
    assert not (machine / "run/specmesh").exists()


def test_what_cannot_be_removed_is_told(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("services.cli.clean.shutil.rmtree", refuse)
    assert main(["clean", "--yes"]) == 1
    assert "models/small cannot be removed: Permission denied" in capsys.readouterr().err
