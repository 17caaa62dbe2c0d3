"""A commit is unpacked once, keeps its environment, and shares it with commits of the same packages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.checkout import checked_out, resolve

# Stands in for deploy/venv.py: says in the environment how often it ran.
INSTALLS = """
import sys
from pathlib import Path
venv = Path(sys.argv[sys.argv.index("--venv") + 1])
(venv / "bin").mkdir(parents=True, exist_ok=True)
with (venv / "bin" / "specmesh").open("a") as file:
    file.write("ran\\n")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "deploy").mkdir(parents=True)
    (root / "deploy" / "venv.py").write_text(INSTALLS)
    (root / "constraints.txt").write_text("torch==2\n")
    git(root, "init", "-q")
    return root


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def commit(root: Path, **files: str) -> str:
    for name, text in files.items():
        (root / f"{name}.txt").write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")
    return git(root, "rev-parse", "HEAD")


def test_a_commit_lies_there_as_it_was(repository: Path, tmp_path: Path) -> None:
    old = commit(repository, code="old")
    commit(repository, code="new")
    with checked_out(old[:7], tmp_path / "cache", repository) as checkout:
        assert checkout.commit == old
        assert (checkout.root / "code.txt").read_text() == "old"
        assert Path(checkout.specmesh[0]).exists()


def test_another_commit_with_the_same_packages_takes_the_environment_over(repository: Path, tmp_path: Path) -> None:
    roots = []
    for name in (commit(repository, gone="old", code="old"), None):
        if name is None:
            (repository / "gone.txt").unlink()
            name = commit(repository, code="new")
        with checked_out(name, tmp_path / "cache", repository) as checkout:
            roots.append(checkout.root)
            code = (checkout.root / "code.txt").read_text()
    assert roots[0] == roots[1] and code == "new" and not (roots[1] / "gone.txt").exists()
    assert Path(checkout.specmesh[0]).read_text() == "ran\nran\n"


def test_what_is_no_commit_is_said(repository: Path) -> None:
    commit(repository, code="old")
    with pytest.raises(SystemExit, match="nowhere is no commit"):
        resolve("nowhere", repository)
