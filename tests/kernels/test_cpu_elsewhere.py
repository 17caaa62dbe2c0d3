"""On a processor of another kind no instruction of x86 is asked for: the loops as an aarch64 machine would compile
them, down to its instructions. Nothing runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding

from kernels.cpu_vectors import features

COMPILE = """
import platform
import sys
import numba
from llvmlite import binding

platform.machine = lambda: "aarch64"

from kernels import cpu_program, cpu_vectors
from kernels.linear import cpu as linears
from kernels.norm_rope_act import cpu_rows
from kernels.paged_attention import cpu_ops

assert cpu_program._FUTEX == (98 if sys.platform == "linux" else 0)
assert not (cpu_vectors.HAS_WIDE or cpu_vectors.HAS_BFLOAT16_DOT or cpu_vectors.HAS_BYTE_DOT)
assert cpu_vectors.HAS_FMA
binding.initialize_all_targets()
binding.initialize_all_asmprinters()
triple = "aarch64-unknown-linux-gnu"
machine = binding.Target.from_triple(triple).create_target_machine(cpu="generic", features="+neon", jit=False)

cpu_program.work.compile(numba.void(*[numba.int64] * 4))
codes = {"work": list(cpu_program.work.inspect_llvm().values())[0]}
for op in (linears.linear_int8_narrow, linears.linear_bfloat16_float32, cpu_rows.norm_rows, cpu_ops.attend_float32):
    codes[op.__name__] = op.compiled.inspect_llvm()
for name, code in codes.items():
    assert "llvm.x86" not in code, name
    module = binding.parse_assembly(code)
    module.triple, module.data_layout = triple, str(machine.target_data)
    assembly = machine.emit_assembly(module)
    if name.startswith(("linear", "attend")):
        assert "mla" in assembly, name
    print(name, "sched_yield" in assembly)
"""


def test_features_are_read_as_they_are_said() -> None:
    assert features("") == {}
    assert features("+fma,-avx512f,+avx512bw") == {"fma": True, "avx512f": False, "avx512bw": True}


def _has_aarch64() -> bool:
    binding.initialize_all_targets()
    try:
        binding.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not _has_aarch64(), reason="this LLVM writes no code for aarch64")
def test_loops_compile_for_aarch64(tmp_path: Path) -> None:
    # Features that x86 doesn't know are passed over by the compiler and say what the loops may ask for.
    told = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+neon,+fp-armv8"}
    # What is found on disk can't be looked at.
    told["NUMBA_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=os.environ | told, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    names = dict(line.split() for line in done.stdout.splitlines())
    assert len(names) == 5 and names["work"] == "True"
