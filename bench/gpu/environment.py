"""What this machine with a GPU is, what it can do at best, and what the compiler makes of every kernel for it.

Kernels are compiled ahead of time for the architecture that was found, an operation a process, so that one that can't
be compiled is named, and the others are all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench.gpu import stage
from bench.rows import ROOT
from bench.shown import Shown
from kernels import ahead_of_time
from kernels.interpreter import SWITCH

HELP = "the GPU, its software, its limits, and a report of every kernel compiled for it"
# A dry run compiles one operation, for this architecture.
DRY_ARCH, DRY_OPERATIONS = 90, ("kv_store",)
COMPILE_SECONDS = 40.0
SHOWN = (
    Shown("What the device can do", "limits",
          {"copy_gb_s": "copy, GB/s", "read_gb_s": "read, GB/s", "matmul_tflops": "products of bf16, TFLOP/s"}),
    Shown("Its kernels, compiled", "compiled>*", {"registers": "registers", "spills_in_loops": "spills in loops"}),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    stage.flags(parser)
    parser.add_argument("--compile-seconds", type=float, default=COMPILE_SECONDS, help="for an operation's kernels")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    where = stage.device(options)
    arch, operations = DRY_ARCH, DRY_OPERATIONS
    figures = stage.facts(where) | {"machine": machine(), "limits": limits(where)}
    if where.type == "cuda":
        properties = torch.cuda.get_device_properties(where)
        arch, operations = properties.major * 10 + properties.minor, ahead_of_time.OPERATIONS
        figures["machine"] |= {
            "memory_gb": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
            "l2_mb": round(getattr(properties, "L2_cache_size", 0) / 2**20, 1),
            "free_gb": round(torch.cuda.mem_get_info()[0] / 2**30, 1),
        }
    print(json.dumps(figures, indent=2), flush=True)
    # Where a dry run happens, others may use the cores.
    seconds = options.compile_seconds * (10 if options.dry_run else 1)
    figures["arch"], figures["compiled"] = arch, compiled(arch, operations, seconds)
    return figures | {"missed": missed(figures["compiled"], arch)}


def machine() -> dict[str, Any]:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "none"
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        driver = ""
    cores = len(os.sched_getaffinity(0))
    return {"torch_cuda": torch.version.cuda, "compiler": compiler, "driver": driver, "cores": cores}


def limits(where: torch.device) -> dict[str, float]:
    """What the other stages' figures are held against, measured here."""
    measures = (stage.copy_gb_s, stage.read_gb_s, stage.matmul_tflops)
    return {measure.__name__: round(measure(where), 1) for measure in measures}


def compiled(arch: int, operations: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """By operation, side by side: each waits for its own compiler."""
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as pool:
        return dict(zip(operations, pool.map(lambda name: _compiled(arch, name, seconds), operations), strict=True))


def _compiled(arch: int, operation: str, seconds: float) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    command = [sys.executable, "-m", "kernels.ahead_of_time", str(arch), operation]
    began = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"problem": f"not within {seconds:g} s"}
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    found: dict[str, Any] = {"kernels": len(facts), "seconds": round(time.monotonic() - began, 1)}
    if facts:
        found |= {most: max(fact[most] for fact in facts) for most in ("registers", "shared", "spills_in_loops")}
    if done.returncode:
        found["problem"] = (done.stderr.strip().splitlines() or ["no word"])[-1][:300]
    return found


def missed(compiled: dict[str, Any], arch: int) -> list[str]:
    found = [f"{name}: {each['problem']}" for name, each in compiled.items() if "problem" in each]
    limit = ahead_of_time.SHARED_LIMIT.get(arch)
    for name, each in compiled.items():
        if each.get("spills_in_loops"):
            found.append(f"{name}: {each['spills_in_loops']} spills in a loop")
        if limit and each.get("shared", 0) > limit:
            found.append(f"{name}: {each['shared']} bytes of shared memory, sm_{arch} has {limit}")
    return found
