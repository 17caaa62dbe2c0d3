"""Measured block sizes of kernels/gemm, by architecture and shape: tiles.json, which `make tune-gpu` rewrites.

A tile is part of what a row's bits depend on, so the table is read once, and a shape that isn't in it keeps the rule in
fused.py. Workers with different tables may give different bits, as workers on different GPUs may.
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("tiles.json")
# What kernels are compiled for: whatever the file says, nothing else is tried.
BLOCKS_N, BLOCKS_K, STAGES, WARPS = (32, 64, 128, 256), (32, 64, 128), (2, 3, 4, 5), (4, 8)
SPLITS = (0, 1, 2, 3, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class Tile:
    block_n: int
    block_k: int
    stages: int
    warps: int
    # Ranges of K; 0: by the rule.
    splits: int = 0

    def __post_init__(self) -> None:
        allowed = self.block_n in BLOCKS_N and self.block_k in BLOCKS_K and self.stages in STAGES
        if not (allowed and self.warps in WARPS and self.splits in SPLITS):
            raise ValueError(f"{self} is no tile of {TABLE.name}: run make tune-gpu again, or empty the file ({{}})")


def key(arch: int, columns: int, inputs: int, dtype: str) -> str:
    return f"sm_{arch} {dtype} {columns} x {inputs}"


def measured(arch: int, columns: int, inputs: int, dtype: str) -> Tile | None:
    return table(TABLE).get(key(arch, columns, inputs, dtype))


@functools.cache
def table(path: Path) -> dict[str, Tile]:
    """Raises ValueError if the file has a tile that no kernel is compiled with."""
    return {name: Tile(**fields) for name, fields in json.loads(path.read_text("utf-8")).items()}


def write(path: Path, found: dict[str, Tile]) -> None:
    """Add to what the file has; other architectures and shapes stay."""
    kept = dict(table(path)) if path.exists() else {}
    tiles = {name: asdict(tile) for name, tile in sorted((kept | found).items())}
    path.write_text(json.dumps(tiles, indent=1) + "\n", "utf-8")
    table.cache_clear()
