"""A copy of the sources, for tests that add to them and start a mesh from that."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from services.runtime.compile_ahead import COMPILED

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kernels", "loadtest", "mesh", "models", "services", "specmesh")


def copy_sources(folder: Path) -> Path:
    """With the loops that are compiled here: a mesh would spend more on compiling them than on the test."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for module in COMPILED.iterdir() if COMPILED.is_dir() else ():
        # As "kernels.linear.cpu-0f3a…", in which numba keeps them by the folder of the source.
        source = folder.joinpath(*module.name.rpartition("-")[0].split(".")[:-1])
        for code in module.iterdir():
            name = f"{source.name}_{hashlib.sha1(str(source).encode()).hexdigest()}"
            if code.name.rpartition("_")[0] == source.name:
                shutil.copytree(code, folder / COMPILED.relative_to(ROOT) / module.name / name)
    return folder
