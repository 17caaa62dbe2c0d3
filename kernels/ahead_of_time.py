"""Compiles every kernel of the project for a GPU that need not be there, and says what each asks of it.

    python -m kernels.ahead_of_time 90          one line of JSON for every kernel and size

An operation's fused.py lists what it is compiled for in `compilations(arch)`, with the same plain functions for
block sizes that its launches use.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ARCHITECTURES = (80, 90, 100)
# Fused multiply-add, approximations, and what flushes small numbers to 0.
_INEXACT = re.compile(r"\b(?:fma\.rn|[a-z]+[0-9.a-z]*\.approx|div\.full|[a-z]+[0-9.a-z]*\.ftz)[0-9.a-z]*")
# What begins a kernel (dependent.py), and what reads or writes memory that other kernels do, too.
_BEGINNING = {
    "start next": re.compile(r"\bgriddepcontrol\.launch_dependents\b"),
    "wait": re.compile(r"\bgriddepcontrol\.wait\b"),
    "prefetch": re.compile(r"\bprefetch\.global\.L2\b"),
    "memory": re.compile(r"\b(?:(?:ld|st|atom|red)\.(?:[a-z0-9:_]+\.)*global|cp\.(?:async|reduce)|multimem|tensormap)"),
}
# The most shared memory a program gets on each, in bytes.
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
# Folders of this package that have a fused.py with `compilations`.
OPERATIONS = (
    "kv_store", "norm_rope_act", "paged_attention", "mla_attention", "delta_rule", "gemm", "moe", "quant", "verify",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compilation:
    """One kernel with the types of its arguments ("*bf16", "i32", "constexpr") and its constants. Pointers are
    multiples of 16, as torch allocates them, but for those that are `between`."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 2
    fp_fusion: bool = True
    between: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompiledFacts:
    name: str
    arch: int
    registers: int  # of a thread
    spilled: int  # bytes of a thread that found no register
    spills_in_loops: int  # instructions that fetch or put such bytes in an innermost loop
    shared: int  # bytes of a program
    matrix_unit: str  # which instructions multiply: wgmma, tcgen05, mma or none
    inexact: tuple[str, ...]  # instructions on floats that don't round as one IEEE operation does
    # How it begins: what of _BEGINNING it does up to its wait and with it, in this order; "jump" if some path leads
    # around the wait or back to before it. All, where there is no wait.
    beginning: tuple[str, ...]


def signature_of(kernel: Any, types: dict[str, str], constants: Iterable[str]) -> dict[str, str]:
    """The signature in the kernel's order, from the types of its arguments and the names of its constants."""
    constants = set(constants)
    return {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}


def compile_for(compilation: Compilation, arch: int) -> CompiledFacts:
    return aot_compile(
        compilation.kernel, compilation.signature, compilation.constants, arch,
        warps=compilation.warps, stages=compilation.stages, name=compilation.name, fp_fusion=compilation.fp_fusion,
        between=compilation.between,
    )  # fmt: skip


def aot_compile(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    arch: int,
    warps: int = 4,
    stages: int = 2,
    name: str = "",
    fp_fusion: bool = True,
    between: tuple[str, ...] = (),
) -> CompiledFacts:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kinds = enumerate(signature.items())
    pointers = [index for index, (argument, kind) in kinds if kind.startswith("*") and argument not in between]
    attributes = {(index,): [["tt.divisibility", 16]] for index in pointers}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": fp_fusion}
    target = GPUTarget("cuda", arch, 32)
    with _as_if_on(target):
        compiled = triton.compile(source, target=target, options=options)
    assert compiled.asm["cubin"]
    registers, spilled = _resources(compiled.asm["cubin"])
    unit = next((unit for unit in ("tcgen05.mma", "wgmma", "mma.sync") if unit in compiled.asm["ptx"]), "none")
    in_loops = _spills_in_loops(compiled.asm["sass"]) if spilled else 0
    inexact = tuple(sorted(set(_INEXACT.findall(compiled.asm["ptx"]))))
    return CompiledFacts(
        name or kernel.__name__, arch, registers, spilled, in_loops, compiled.metadata.shared, unit.partition(".")[0],
        inexact, _beginning(compiled.asm["ptx"]),
    )  # fmt: skip


@contextmanager
def _as_if_on(target: Any) -> Iterator[None]:
    """Kernels ask for the device's capability while they are compiled, and it isn't the target they are told of."""
    from triton.runtime import driver

    was = driver._active
    driver.set_active(SimpleNamespace(get_current_target=lambda: target))
    try:
        yield
    finally:
        driver._active = was


def _beginning(ptx: str) -> tuple[str, ...]:
    lines = [line.partition("//")[0] for line in ptx.splitlines()]
    found = [(at, name) for at, line in enumerate(lines) for name, is_one in _BEGINNING.items() if is_one.search(line)]
    waits = [at for at, name in found if name == "wait"]
    if not waits:
        return tuple(dict.fromkeys(name for _, name in found))
    labels = {label[1]: at for at, line in enumerate(lines) if (label := re.match(r"\s*(\$\w+):", line))}
    jumps = [(at, labels[to[1]]) for at, line in enumerate(lines) if (to := re.search(r"\bbra\S*\s+(\$\w+)", line))]
    returns = [(at, len(lines)) for at, line in enumerate(lines) if re.search(r"\b(?:ret|exit|trap)\b", line)]
    jumped = any(min(jump) < wait < max(jump) for jump in jumps + returns for wait in waits)
    begins = [name for at, name in found if at <= waits[0] or name == "wait"]
    return (*dict.fromkeys(begins), *["wait"] * (len(waits) - 1), *["jump"] * jumped)


def _resources(binary: bytes) -> tuple[int, int]:
    """Registers and local bytes of a thread, from what the compiler wrote into the binary."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told.stdout)
    assert found, told.stdout
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def _spills_in_loops(sass: str) -> int:
    """A loop is what lies between an instruction and a branch back to it. Branches name a label, or (uniform ones)
    an address: instructions take 16 bytes each."""
    labels: dict[str, int] = {}
    code: list[str] = []
    for line in sass.splitlines()[1:]:
        if label := re.fullmatch(r"\s*(L\w+):", line):
            labels[label[1]] = len(code)
        elif line.strip():
            code.append(line)
    loops = []
    for at, line in enumerate(code):
        if found := re.search(r"\bBRA\b.*?\b(L\w+|0x[0-9a-f]+)", line):
            target = int(found[1], 16) // 16 if found[1].startswith("0x") else labels.get(found[1], at)
            if target < at:
                loops.append((target, at))
    assert loops, "the disassembly has another form"
    inner = [
        (first, last)
        for first, last in loops
        if not any(first <= other and end <= last and (other, end) != (first, last) for other, end in loops)
    ]
    return sum(bool(re.search(r"\b(LDL|STL)\b", line)) for first, last in inner for line in code[first:last])


def compilations(arch: int, operations: Iterable[str] = OPERATIONS) -> Iterator[Compilation]:
    for operation in operations:
        yield from importlib.import_module(f"kernels.{operation}.fused").compilations(arch)


def main(arch: int, operations: Iterable[str]) -> None:
    for compilation in compilations(arch, operations):
        print(json.dumps(asdict(compile_for(compilation, arch))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or OPERATIONS)
