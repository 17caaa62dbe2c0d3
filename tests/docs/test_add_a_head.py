"""docs/internals/add-a-head.md, followed word for word in a copy of the sources: one file and one row, and the new kind
of head is trained, known by its folder, and drafts in a worker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guides import ROOT, completed, drafted, followed
from tiny_folder import write_tiny_model

from bench.running_mesh import RunningMesh

PAGE = ROOT / "docs" / "internals" / "add-a-head.md"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    files, rows = followed(PAGE, folder, ")\nHEADS")
    assert len(files) <= 2 and len(rows) == 1
    lines = [(place / rows[0]).read_text().splitlines() for place in (ROOT, folder)]
    assert len(lines[1]) == len(lines[0]) + 1, "the row is a line"
    return folder


@pytest.fixture(scope="module")
def head(sources: Path) -> Path:
    """Trained with the page's command, on a tiny model."""
    model = write_tiny_model(sources / "tiny")
    prompts = [" ".join(f"w{(7 * number + place) % 200 + 5}" for place in range(8)) for number in range(8)]
    (sources / "prompts.txt").write_text("\n".join(prompts))
    (command,) = re.findall(r"^\$ specmesh (train-drafter .*)$", PAGE.read_text(), re.MULTILINE)
    small = ["--model", str(model), "--dtype", "float32", "--executor", "plain", "--answer-tokens", "24"]
    run = subprocess.run(
        [sys.executable, "-m", "services.cli", *command.split(), *small], cwd=sources, capture_output=True, text=True,
        timeout=300, env=os.environ | {"PYTHONPATH": str(sources)},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return sources / "my-ladder"


@pytest.fixture(scope="module")
def mesh(sources: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    settings = {"model": sources / "tiny", "executor": "plain", "dtype": "float32", "draft_model": head}
    running = RunningMesh(tmp_path_factory.mktemp("mesh"), settings, root=sources)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


def complete(mesh: RunningMesh, method: str) -> str:
    return completed(mesh, "tiny", method, " ".join(f"w{place}" for place in range(5, 45)), max_tokens=40)


def test_a_head_that_was_added_as_the_page_says_drafts(mesh: RunningMesh) -> None:
    plain = complete(mesh, "naive")
    assert drafted(mesh, "ladder") == 0.0
    assert complete(mesh, "ladder") == plain, "law 3"
    assert drafted(mesh, "ladder") >= 30


def test_its_folder_holds_what_its_file_says(head: Path) -> None:
    said = json.loads((head / "training.json").read_text())
    assert said["method"] == "ladder" and said["numbers"] == 3 * 64 * 64 and said["tokens_per_step"] >= 1.0
