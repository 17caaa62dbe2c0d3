"""The compiled executor on processors with less than this one: what numba compiles for decides which loops run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import parity
import pytest
import run_compiled
import torch
from transformers import LlamaConfig

from kernels import cpu_vectors
from models.batch import Stretch
from models.plain import PlainExecutor

TESTS = Path(__file__).parent
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.03, "int8": 0.08}
AVX2 = "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+popcnt,+sse4.2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Widths that are whole vectors nowhere."""
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 100}
    parity.save_tiny(LlamaConfig, folder, num_hidden_layers=2, **sizes)
    return folder


def check(folder: Path, out: Path, features: dict[str, str], path: dict[str, str]) -> None:
    """`path`: what runs each dtype."""
    environment = os.environ | features | {"PYTHONPATH": str(TESTS.parents[1])}
    command = [sys.executable, str(TESTS / "run_compiled.py"), str(folder), str(out), *path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    plain = parity.load(folder, lambda *rest: PlainExecutor(*rest[:2], replace(rest[2], strict=False)))
    expected = parity.run(plain, [Stretch(run_compiled.TOKENS, 0, [0, 1, 2, 3], 0)])
    found = np.load(out)
    for dtype, how in path.items():
        tolerance = TOLERANCES[dtype]
        assert how in str(found[f"{dtype} path"])
        assert found[f"{dtype} same bits"]
        error = (torch.from_numpy(found[dtype]) - expected).abs()
        if dtype == "float32":
            assert error.max() <= tolerance
        else:
            assert error.mean() <= tolerance * expected.abs().mean()


on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for older x86 processors")
# Compiling the loops is what takes long. int8 shares attention with float32 there.
ALL_OF_THEM = pytest.param(list(TOLERANCES), marks=pytest.mark.slow, id="all")


@on_x86
@pytest.mark.shows("CPU with AVX2 only", "tested")
@pytest.mark.parametrize("dtypes", [["int8"], ALL_OF_THEM], ids=str)
def test_a_processor_with_vectors_of_256_bits(dtypes: list[str], folder: Path, tmp_path: Path) -> None:
    haswell = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2}
    check(folder, tmp_path / "out.npz", haswell, dict.fromkeys(dtypes, "portable"))


@on_x86
@pytest.mark.parametrize("dtypes", [ALL_OF_THEM])
def test_a_processor_with_vectors_of_128_bits_and_no_fused_multiply_add(
    dtypes: list[str], folder: Path, tmp_path: Path
) -> None:
    nehalem = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": ""}
    check(folder, tmp_path / "out.npz", nehalem, dict.fromkeys(dtypes, "portable"))


def test_this_processor(folder: Path, tmp_path: Path) -> None:
    wide = {
        "float32": "avx512" if cpu_vectors.HAS_WIDE else "portable",
        "bfloat16": "avx512_bf16" if cpu_vectors.HAS_BFLOAT16_DOT else "portable",
        "int8": "avx512_vnni" if cpu_vectors.HAS_BYTE_DOT else "portable",
    }
    check(folder, tmp_path / "out.npz", {}, wide)
