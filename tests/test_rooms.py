"""A process of specmesh takes the rooms of the code from their folder, whoever else has packages of these names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specmesh import rooms

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("mesh", "kernels", "models", "services", "loadtest")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's project, with packages named as our rooms are."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(f"print('the project has {room}')\n")
    return tmp_path


def run(project: Path, *command: str) -> str:
    """What it says in the project, whose folder is on PYTHONPATH, too."""
    environment = os.environ | {"PYTHONPATH": str(project)}
    done = subprocess.run(
        command, cwd=project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    return f"{done.returncode} {done.stdout}{done.stderr}"


def test_a_checkout_has_the_rooms_beside_the_package() -> None:
    assert rooms.FOLDER == ROOT and not rooms.is_installed()
    assert all((rooms.FOLDER / room / "__init__.py").is_file() for room in ROOMS)


def test_the_rooms_come_first_and_once_and_the_rest_of_the_path_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/theirs", str(ROOT), "/packages"])
    rooms.put_first()
    rooms.put_first()
    assert sys.path == [str(ROOT), "/theirs", "/packages"]


def test_a_process_that_we_start_runs_our_module_with_its_words(project: Path) -> None:
    said = run(project, *rooms.command("services.cli", "--version"))
    assert said.startswith("0 specmesh") and "the project" not in said
    assert run(project, *rooms.command("services.cli", "nonsense")).startswith("2 ")


def test_the_package_runs_as_the_command(project: Path) -> None:
    package = str(ROOT / "specmesh" / "__main__.py")
    code = f"import runpy, sys; sys.path.append({str(ROOT)!r}); runpy.run_path({package!r}, run_name='__main__')"
    said = run(project, sys.executable, "-c", code, "--version")
    assert said.startswith("0 specmesh") and "the project" not in said


def test_other_processes_find_the_projects_packages(project: Path) -> None:
    assert run(project, sys.executable, "-c", "import services") == "0 the project has services\n"


# Each with what it starts, which is none of our modules.
OTHERS = {
    "services/runtime/children.py": "the command that it is given, behind an isolated Python",
    "models/sources.py": "pip",
    "services/cli/doctor/gpu.py": "torch, which may fail to load",
    "services/cli/doctor/machine.py": "an import that may fail",
}


def test_our_modules_are_started_with_the_rooms_first() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    starting = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if re.search(r"\bsys\.executable\b|[\"']-m[\"']|multiprocessing|ProcessPool", file.read_text(encoding="utf-8"))
    }
    assert starting == OTHERS.keys()


# A file's text is UTF-8, whatever the locale of the machine is.
BARE = re.compile(
    r"""\.read_text\(\)"""
    r"""|\.write_text\((?![^\n]*utf-8)"""
    r"""|(?<!\bos)\.open\((?:"[rwax+t]*")?\)"""
    r"""|\bf?d?open\([^\n]*"[rwax+t]*"\)"""
    r"""|\btext=True"""
)
# What is opened there is no file.
NO_FILES = {"services/streamer/choice/generation.py"}


def test_no_text_is_read_or_written_by_the_locales_encoding() -> None:
    files = [file for room in (*ROOMS, "specmesh") for file in (ROOT / room).rglob("*.py")]
    found = {
        file.relative_to(ROOT).as_posix(): words
        for file in files
        if (words := BARE.findall(file.read_text(encoding="utf-8")))
    }
    assert {name: words for name, words in found.items() if name not in NO_FILES} == {}
