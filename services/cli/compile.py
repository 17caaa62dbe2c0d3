"""`specmesh compile`: compiles what a start would, and says where that is kept: a later start with the same settings
compiles nothing, and an image or a volume can carry it.

    loops of the CPU        <NUMBA_CACHE_DIR>/compiled      for this kind of processor (kernels/cpu_cache.py)
    kernels of the GPU      TRITON_CACHE_DIR                for this GPU

What a start compiles depends on model, dtype, heads and machine. So a mesh is started and ended: nothing else knows.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from kernels import cpu_cache
from services.api.settings import Settings
from services.cli.doctor.gpu import triton_cache
from services.cli.server_used import OptionsError, exit_code, server_used
from services.runtime import compile_ahead


@dataclass(frozen=True, slots=True)
class Cache:
    what: str
    folder: Path
    # Of a file for each that is compiled.
    pattern: str

    def kept(self) -> set[tuple[Path, int]]:
        """With the time when it was written: what is compiled again may have the same name."""
        return {(each, each.stat().st_mtime_ns) for each in self.folder.rglob(self.pattern)}

    def size(self) -> int:
        return sum(each.stat().st_size for each in self.folder.rglob("*") if each.is_file())


def main(options: argparse.Namespace, settings: Settings) -> int:
    """Exit code 0: all is compiled; 2: something failed."""
    return exit_code(options, lambda: _compile(options, settings))


def _compile(options: argparse.Namespace, settings: Settings) -> int:
    caches = list(_caches(settings))
    before = [cache.kept() for cache in caches]
    print("specmesh: compiling; the first time takes one or two minutes", file=sys.stderr, flush=True)
    # First, as these are beside each other.
    _ahead(compile_ahead.modules(settings))
    with server_used(options, settings, "what its start compiles"):
        pass
    for cache, old in zip(caches, before, strict=True):
        kept = cache.kept()
        size = f"{cache.size() / 1e6:.1f} MB"
        print(f"{cache.folder}: {len(kept)} {cache.what}, {size}, {len(kept - old)} compiled now", flush=True)
    return 0


def _caches(settings: Settings) -> list[Cache]:
    folder = cpu_cache.root()
    if folder is None:
        raise OptionsError("compiled code can be kept nowhere: NUMBA_CACHE_DIR names a folder that can be written")
    loops = Cache("loops", folder, "*.nbc")
    kernels = Cache("kernels of the GPU", triton_cache(), "*.cubin")
    return [loops, kernels] if compile_ahead.on_gpu(settings) else [loops]


def _ahead(modules: tuple[str, ...]) -> None:
    compilers = compile_ahead.start(modules)
    try:
        compile_ahead.wait(compilers)
    finally:
        compile_ahead.stop(compilers)
    for module, compiler in zip(modules, compilers, strict=True):
        if compiler.returncode:
            raise OptionsError(f"python -m specmesh.rooms {module} has failed (exit code {compiler.returncode})")
