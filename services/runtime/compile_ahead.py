"""Compiles all loops of a first start, in processes of their own, while something else is waited for: the model is
being fetched, or packages are installed. What is on disk isn't compiled again; processes that start later find it.

    python -m services.runtime.compile_ahead

Knows which modules compile; imports none of them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from services.api.settings import Settings
from specmesh import rooms

# Where code is kept when nobody says otherwise (kernels/cpu_cache.py).
COMPILED = rooms.FOLDER / "kernels" / "__pycache__" / "compiled"
OF_PROPOSER = "services.proposer.fast.compiling"
# Each compiles by itself; the longest first.
MODULES = ("models.cpu.compile_ahead", "kernels.verify.ahead", OF_PROPOSER)


def wanted() -> bool:
    """Whether nothing was ever compiled here: a start after an edit compiles what it needs by itself."""
    if os.environ.get("NUMBA_CACHE_DIR") or not os.access(rooms.FOLDER / "kernels", os.W_OK):
        return False
    return not COMPILED.is_dir() or not any(COMPILED.iterdir())


def on_gpu(settings: Settings) -> bool:
    there = settings.executor == "triton" or (settings.executor == "auto" and Path("/dev/nvidia0").exists())
    return settings.engine == "torch" and there


def modules(settings: Settings) -> tuple[str, ...]:
    """Those whose loops a mesh with these settings runs."""
    loops = settings.engine == "torch" and settings.executor != "plain" and not on_gpu(settings)
    return MODULES if loops else (OF_PROPOSER,)


def start(modules: Sequence[str] = ()) -> list[subprocess.Popen[bytes]]:
    """Compiles in the background; all, if none are named. Output and errors are dropped: a process that finds nothing
    compiled compiles it itself."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            rooms.command(module), env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for module in modules or MODULES
    ]  # fmt: skip


def wait(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.wait()


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


if __name__ == "__main__":
    if wanted():
        wait(start())
