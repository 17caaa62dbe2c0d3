"""deploy/venv.py and constraints.txt: what is installed is pinned, and installed once."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy_script import deploy_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def venv_script() -> ModuleType:
    return deploy_script("venv")


@pytest.fixture
def installs(venv_script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """pip calls, which succeed and do nothing."""
    calls: list[list[str]] = []

    def pip(command: list[str], log: Path) -> int:
        calls.append(command)
        return 0

    monkeypatch.setattr(venv_script, "create", lambda venv: venv.mkdir(exist_ok=True))
    monkeypatch.setattr(venv_script, "run_pip", pip)
    return calls


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    parsed = [re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9_.]+)", line) for line in lines]
    assert all(parsed), "a line of constraints.txt is not NAME==VERSION"
    return {canonicalize_name(found[1]): found[2] for found in parsed if found}


def test_a_second_installation_does_nothing(venv_script: ModuleType, installs: list, tmp_path: Path) -> None:
    venv_script.install(tmp_path / "v", dev=False)
    venv_script.install(tmp_path / "v", dev=False)
    assert len(installs) == 1


def test_what_developers_installed_serves_users_but_not_the_other_way_round(
    venv_script: ModuleType, installs: list, tmp_path: Path
) -> None:
    venv_script.install(tmp_path / "v", dev=False)
    venv_script.install(tmp_path / "v", dev=True)
    venv_script.install(tmp_path / "v", dev=False)
    assert [command[-1].endswith("[dev]") for command in installs] == [False, True]


def test_a_failed_installation_is_repeated_by_the_next_call(
    venv_script: ModuleType,
    installs: list,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    def failing(command: list[str], log: Path) -> int:
        log.write_text("ERROR: no such version\n")
        return 1

    monkeypatch.setattr(venv_script, "run_pip", failing)
    assert venv_script.install(tmp_path / "v", dev=False) == 1
    assert "no such version" in capfd.readouterr().err
    monkeypatch.setattr(venv_script, "run_pip", lambda command, log: installs.append(command) or 0)
    assert venv_script.install(tmp_path / "v", dev=False) == 0
    assert len(installs) == 1


def test_changed_pins_and_a_moved_folder_are_installed_anew(
    venv_script: ModuleType, installs: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(venv_script, "ROOT", tmp_path)
    venv_script.install(tmp_path / "v", dev=False)
    (tmp_path / "constraints.txt").write_text("torch==0\n")
    venv_script.install(tmp_path / "v", dev=False)
    (tmp_path / "v").rename(tmp_path / "w")
    venv_script.install(tmp_path / "w", dev=False)
    assert len(installs) == 3


def test_a_venv_whose_pip_works_is_kept(venv_script: ModuleType, tmp_path: Path) -> None:
    python = tmp_path / "v" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    venv_script.create(tmp_path / "v")
    assert python.read_text() == "#!/bin/sh\nexit 0\n"


def test_where_python_has_no_ensurepip_the_outer_pip_brings_pip(
    venv_script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian without python3-venv: `python3 -m venv` fails, with --without-pip it doesn't."""
    real_run, ran = subprocess.run, []

    def run(command: list[object], **more: object) -> subprocess.CompletedProcess[bytes]:
        words = [str(word) for word in command]
        ran.append(words)
        if words[1:3] == ["-m", "venv"] and "--without-pip" not in words:
            return subprocess.CompletedProcess(command, 1)
        if words[1:3] == ["-m", "pip"]:
            return subprocess.CompletedProcess(command, 0)
        return real_run(words, **more)

    monkeypatch.setattr(venv_script.subprocess, "run", run)
    venv_script.create(tmp_path / "v")
    assert (tmp_path / "v" / "bin" / "python").exists()
    assert ran[-1][1:4] == ["-m", "pip", "--python"]


def test_everything_required_directly_or_indirectly_is_pinned() -> None:
    pinned = pins()
    unpinned: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [("specmesh", "dev")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            needed = canonicalize_name(requirement.name)
            if needed not in pinned:
                unpinned.add(f"{needed}, required by {name}")
            try:
                importlib.metadata.distribution(needed)
            except importlib.metadata.PackageNotFoundError:
                continue
            waiting += [(needed, more) for more in ("", *requirement.extras)]
    assert unpinned == set()
    assert len(seen) > 30


def test_torch_is_pinned_without_a_build_and_the_name_of_ours_is_kept_out() -> None:
    assert pins()["torch"] == "2.13.0"
    assert "kernels" not in pins()
    assert not [name for name in pins() if name.startswith("nvidia")]
