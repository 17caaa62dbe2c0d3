"""What verifies is compiled once for a machine, beside whatever else a start compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import subprocess, sys
from kernels.verify import ahead
assert not ahead.is_compiled()
assert subprocess.run([sys.executable, "-m", "kernels.verify.ahead"]).returncode == 0
assert ahead.is_compiled()
from kernels.verify.cpu_rows import judge_all
ahead.compile_all()
assert sum(judge_all.stats.cache_hits.values()) == 1 and not judge_all.stats.cache_misses, judge_all.stats
"""


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_one_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
