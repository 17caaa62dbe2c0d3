"""AMX: what a product of tiles is, to the bit; and linears and attention that are made of it. Where the CPU has none
its emulation is tested, and what is compiled for a CPU that has it is looked at.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

from kernels import amx
from kernels.cpu_cache import AMX_SWITCH
from kernels.cpu_program import aligned
from kernels.cpu_vectors import scratch

pytestmark = pytest.mark.shows("CPU with AMX", "tested")
ROOT = Path(__file__).parents[2]
with_tiles = pytest.mark.skipif(not amx.AVAILABLE, reason="this CPU has no AMX: its emulation is tested instead")

_state = scratch(amx.STATE)
_load0, _load1, _load2, _store0 = amx.load(0), amx.load(1), amx.load(2), amx.store(0)
_pairs, _bytes = amx.dot_bfloat16(0, 1, 2), amx.dot_bytes(0, 1, 2)


@numba.njit
def _product(is_bytes, rows, words, c, a, b):
    """c [rows, 16] += a [rows, words] · b [words, 16]."""
    state = _state()
    tiles = rows | rows << 8 | words << 16
    for tile in range(3, 8):
        tiles |= 16 << 8 * tile
    whole = 64 | 64 << 16 | 64 << 32 | 64 << 48
    amx.configure(state, tiles, 64 | 4 * words << 16 | 64 << 32 | 64 << 48, whole)
    _load0(state, c, 64)
    _load1(state, a, 4 * words)
    _load2(state, b, 64)
    if is_bytes:
        _bytes(state)
    else:
        _pairs(state)
    _store0(state, c, 64)
    amx.release(state)


def product(is_bytes: bool, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    kept = []
    for array in (c, a, b):
        memory = aligned(array.nbytes, np.uint8)
        memory[:] = np.frombuffer(array.tobytes(), np.uint8)
        kept.append(memory)
    _product(is_bytes, len(c), a.nbytes // len(c) // 4, *(each.ctypes.data for each in kept))
    return kept[0].view(c.dtype).reshape(c.shape)


def numbers(count: int, spread: int, seed: int) -> torch.Tensor:
    """bfloat16 of many sizes."""
    source = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-spread, spread + 1, (count,), generator=source)
    return (torch.randn(count, generator=source) * torch.exp2(sizes.float())).bfloat16()


def words_of(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.int16).numpy()


@with_tiles
@pytest.mark.parametrize("rows, words, spread", [(1, 16, 0), (16, 16, 3), (5, 7, 8), (16, 1, 20)])
def test_a_product_adds_even_and_odd_products_apart_and_in_order(rows: int, words: int, spread: int) -> None:
    a = numbers(rows * 2 * words, spread, 1).view(rows, words, 2)
    b = numbers(words * 32, spread, 2).view(words, 16, 2)
    c = torch.randn(rows, 16, generator=torch.Generator().manual_seed(3))
    sums = []
    for half in range(2):
        total = np.zeros((rows, 16), np.float32)
        for k in range(words):
            # A product of bfloat16 is exact in float64, and the sum of it and a float32 nearly always.
            exact = a[:, k, half, None].double().numpy() * b[k, :, half].double().numpy()
            total = (total.astype(np.float64) + exact).astype(np.float32)
        sums.append(total)
    expected = c.numpy() + (sums[0] + sums[1])
    found = product(False, c.numpy(), words_of(a), words_of(b))
    assert np.array_equal(found.view(np.int32), expected.view(np.int32))


@with_tiles
def test_what_is_too_small_counts_as_zero() -> None:
    if amx.EMULATED:
        pytest.skip("the emulation keeps small numbers")
    a, b = torch.full((1, 16, 2), 2.0**-120).bfloat16(), torch.full((16, 16, 2), 2.0**-10).bfloat16()
    assert not product(False, np.zeros((1, 16), np.float32), words_of(a), words_of(b)).any()


@with_tiles
@pytest.mark.parametrize("rows, words", [(1, 16), (16, 16), (9, 5)])
def test_a_product_of_bytes_is_exact(rows: int, words: int) -> None:
    source = np.random.default_rng(4)
    a = source.integers(0, 256, (rows, 4 * words), np.uint8)
    b = source.integers(-128, 128, (words, 16, 4), np.int8)
    c = source.integers(-(1 << 30), 1 << 30, (rows, 16), np.int32)
    wide = b.transpose(0, 2, 1).reshape(4 * words, 16).astype(np.int64)
    assert np.array_equal(product(True, c, a, b), (c + a.astype(np.int64) @ wide).astype(np.int32))


# Without AMX ----------------------------------------------------------------------------------------------------------

EMULATED = {
    "products": ("tests/kernels/test_amx.py", "a_product"),
    "linears": ("tests/kernels/linear/test_cpu.py", "same_bits_in_any_number or mxfp4 or exact_to_the_last"),
    "attention": ("tests/kernels/paged_attention/test_cpu_ops.py", "(llama or window) and not float32"),
}


@pytest.mark.skipif(amx.AVAILABLE, reason="the tests themselves run")
@pytest.mark.parametrize(
    "what",
    ["products", *(pytest.param(each, marks=pytest.mark.slow) for each in ("linears", "attention"))],
)
def test_emulated(what: str, tmp_path: Path) -> None:
    file, chosen = EMULATED[what]
    environment = os.environ | {AMX_SWITCH: "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", file, "-k", chosen]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


COMPILED = """
import numba, llvmlite.binding as binding
from kernels import amx, cpu_vectors
assert all(cpu_vectors.FEATURES.get(name) for name in amx._NEEDED), cpu_vectors.FEATURES
from kernels.linear import cpu as linears
from kernels.paged_attention import cpu_ops
binding.initialize_all_targets()
binding.initialize_all_asmprinters()
target = binding.Target.from_triple(binding.get_default_triple())
machine = target.create_target_machine(cpu="sapphirerapids", features=FEATURES, jit=False)
for op in (linears.linear_amx_bfloat16, linears.linear_amx_int8, linears.linear_amx_mxfp4, cpu_ops.attend_amx):
    assembly = machine.emit_assembly(binding.parse_assembly(op.compiled.inspect_llvm()))
    names = ("ldtilecfg", "tileloadd", "tdpbf16ps", "tdpbusd", "tilestored", "tilerelease")
    print(op.__name__, *(name for name in names if name in assembly))
"""
FEATURES = (
    "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+popcnt,+sse4.2,+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512vnni,"
    "+avx512bf16,+amx-tile,+amx-bf16,+amx-int8"
)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for a processor of x86")
def test_loops_compile_for_a_processor_with_amx(tmp_path: Path) -> None:
    told: dict[str, Any] = {"NUMBA_CPU_NAME": "sapphirerapids", "NUMBA_CPU_FEATURES": FEATURES}
    environment = os.environ | told | {"NUMBA_CACHE_DIR": str(tmp_path)}
    script = f"FEATURES = {FEATURES!r}\n{COMPILED}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = {line.split()[0]: set(line.split()[1:]) for line in done.stdout.splitlines()}
    tiles = {"ldtilecfg", "tileloadd", "tilestored", "tilerelease"}
    assert said == {
        "linear_amx_bfloat16": tiles | {"tdpbf16ps"}, "linear_amx_int8": tiles | {"tdpbusd"},
        "linear_amx_mxfp4": tiles | {"tdpbf16ps"}, "attend_amx": tiles | {"tdpbf16ps"},
    }  # fmt: skip
