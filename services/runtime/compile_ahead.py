"""Compiles all loops of a first start, in processes of their own, while something else is waited for: the model is
being fetched, or packages are installed. What is on disk isn't compiled again; processes that start later find it.

    python -m services.runtime.compile_ahead

Knows which modules compile; imports none of them.
"""

from __future__ import annotations

import os
import subprocess

from specmesh import rooms

# Where code is kept when nobody says otherwise (kernels/cpu_cache.py).
COMPILED = rooms.FOLDER / "kernels" / "__pycache__" / "compiled"
# Each compiles by itself; the longest first.
MODULES = ("models.cpu.compile_ahead", "kernels.verify.ahead", "services.proposer.fast.compiling")


def wanted() -> bool:
    """Whether nothing was ever compiled here: a start after an edit compiles what it needs by itself."""
    if os.environ.get("NUMBA_CACHE_DIR") or not os.access(rooms.FOLDER / "kernels", os.W_OK):
        return False
    return not COMPILED.is_dir() or not any(COMPILED.iterdir())


def start() -> list[subprocess.Popen[bytes]]:
    """Compiles in the background. Output and errors are dropped: a process that finds nothing compiled compiles it
    itself."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            rooms.command(module), env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for module in MODULES
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
