"""Benchmarks of a GPU that aren't stages of `bench on_gpu`, in the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import rows
from kernels.interpreter import SWITCH

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: they run for real")
@pytest.mark.parametrize(
    ("name", "path"), [("gpu_ahead", "shapes/8B/wait"), ("gpu_tiles", "linears/130 rows, 96 x 64")]
)
def test_a_dry_run_gives_the_same_bits_in_every_way(name: str, path: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bench", name, "--dry-run", "--results", str(tmp_path)]
    environment = os.environ | {SWITCH: "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = rows.read(name, tmp_path)
    figures = row["figures"]
    for each in path.split("/"):
        figures = figures[each]
    assert len(figures) == 2 and row["figures"]["missed"] == []
