"""The list of what a model's kernels are specialised for: bounded, whole, and compiled for each architecture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kernels.ahead_of_time import ARCHITECTURES, SHARED_LIMIT
from kernels.interpreter import SWITCH
from tests.tiny_folder import write_tiny_model

ROOT = Path(__file__).parents[3]
LIST = """
import json, sys
from pathlib import Path
from models.gpu.specialisations import specialisations
listed = specialisations(Path(sys.argv[1]), 90, "bfloat16")
print(json.dumps([[each.kernel.__name__, each.between] for each in listed]))
"""


def run(*arguments: str) -> list[str]:
    """In a process of its own: in this one, kernels may be defined for the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny", hollow=True)


def test_the_list_is_short_and_its_pointers_can_be_read_in_wide_pieces(folder: Path) -> None:
    listed = json.loads(run("-c", LIST, str(folder))[-1])
    kernels = Counter(name for name, _ in listed)
    # Edits, masks, probabilities of drafts, and for the scan whether anything samples; nothing that counts rows.
    assert (kernels["scan_kernel"], kernels["walk_kernel"], kernels["settle_kernel"]) == (8, 8, 4)
    assert kernels["prepare_kernel"] == kernels["logprobs_kernel"] == kernels["embed_kernel"] == 1
    # The linears of four shapes, at most twice each: with few rows K is cut into ranges.
    assert kernels["linear_kernel"] <= 10
    assert len(listed) <= 80
    assert [name for name, between in listed if between] == []


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_all_of_the_list_compiles_and_fits(folder: Path, arch: int) -> None:
    first, *facts, _last = map(json.loads, run("-m", "models.gpu.specialisations", str(folder), str(arch)))
    assert len(facts) == first["specialisations"]
    assert [fact for fact in facts if fact["spills_in_loops"] or fact["shared"] > SHARED_LIMIT[arch]] == []
