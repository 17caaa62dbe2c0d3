"""`specmesh compile`: what it has compiled, no later start compiles, also where the cache was carried."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from running_mesh import RunningMesh

from tests.tiny_folder import write_tiny_model

pytestmark = pytest.mark.model
ROOT = Path(__file__).resolve().parents[2]


def compiled(model: Path, cache: Path | None = None) -> tuple[Path, int]:
    """Where it is kept, and how many loops were compiled."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPECMESH_", "NUMBA_"))}
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "compile", str(model), "--executor=compiled"],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
        env={**env, "SPECMESH_CONFIG": "", **({"NUMBA_CACHE_DIR": str(cache)} if cache else {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = re.fullmatch(r"(/.+): (\d+) loops, (\d+\.\d) MB, (\d+) compiled now\n", done.stdout)
    assert told, done.stdout
    folder = Path(told[1])
    assert len(list(folder.rglob("*.nbc"))) == int(told[2]) and float(told[3]) > 1
    return folder, int(told[4])


def written(folder: Path) -> dict[str, int]:
    """When each compiled loop was."""
    return {str(each): each.stat().st_mtime_ns for each in folder.rglob("*.nbc")}


@pytest.mark.slow  # loops are compiled anew
def test_a_start_compiles_only_what_is_not_there(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    folder, _ = compiled(model)
    carried = tmp_path / "carried" / "compiled"
    shutil.copytree(folder, carried)
    lost = [each for name in ("judge_all", "run_program") for each in carried.rglob(f"*.{name}-*.nbc")]
    assert lost
    for each in lost:
        each.unlink()
    kept = written(carried)
    where, count = compiled(model, carried.parent)
    now = written(where)
    assert where == carried and 1 <= count <= len(lost)
    assert {name for name, when in now.items() if kept.get(name) != when} <= {str(each) for each in lost}
    assert compiled(model, carried.parent) == (carried, 0), "the second start compiles nothing"
    assert written(carried) == now
    mesh = RunningMesh(
        tmp_path, {"model": model, "executor": "compiled"}, environment={"NUMBA_CACHE_DIR": str(carried.parent)}
    )
    try:
        mesh.wait_until_ready()
        for more in ({"temperature": 0}, {"temperature": 1, "seed": 1, "logprobs": 2}):
            assert tokens_of(mesh, prompt=[5, 6, 7, 5, 6, 7, 5, 6], max_tokens=16, ignore_eos=True, **more) == 16
    finally:
        mesh.stop()
    assert written(carried) == now, "nor do the first answers"


def tokens_of(mesh: RunningMesh, **body: Any) -> int:
    request = urllib.request.Request(f"{mesh.url}/v1/completions", json.dumps({"model": "tiny", **body}).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])
