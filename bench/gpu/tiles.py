"""Linears of many rows in the shapes of Llama 3.1 8B: the tile for few rows beside those for many, by rows; rates, and
whether all give the same bits, which they must.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

from bench.gpu import stage
from bench.shown import Shown
from kernels.ahead_of_time import SHARED_LIMIT
from kernels.device_times import milliseconds

HELP = "linears of many rows: tiles for few rows and for many, their rates and bits"
# Columns and inputs.
LINEARS, TOYS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)), ((96, 64), (64, 128))
ROWS, TOY_ROWS = (96, 256, 512, 2048), (130,)
# Bytes of a program that a tile's stages must fit into: those of the smallest device it is tried on.
SHARED = SHARED_LIMIT[90]
TILES = {"64 rows": (0, 0), "128 x 128, 3": (128, 3), "128 x 128, 4": (128, 4), "128 x 256, 4": (256, 4)}
SHOWN = (Shown("Tiles of linears with many rows, TFLOP/s", "linears>*", say="Of rows, columns and stages."),)
flags = stage.flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from kernels.gemm import fused
    from kernels.gemm.fused import tile_of
    from kernels.launch import architecture

    where = stage.device(options)
    figures = stage.facts(where) | {"linears": {}, "missed": []}
    for columns, inputs in TOYS if options.dry_run else LINEARS:
        weight = torch.randn(columns, inputs, device=where).bfloat16() / inputs**0.5
        for rows in TOY_ROWS if options.dry_run else ROWS:
            x, name = torch.randn(rows, inputs, device=where).bfloat16(), f"{rows} rows, {columns} x {inputs}"
            found = figures["linears"][name] = {}
            expected = fused.linear(x, weight, many=TILES["64 rows"])
            step = tile_of(columns, inputs, weight.dtype, architecture(where))[0]["BLOCK_K"]
            for tile, many in TILES.items():
                if 2 * step * (128 + many[0]) * many[1] > SHARED:
                    continue
                if not torch.equal(fused.linear(x, weight, many=many), expected):
                    figures["missed"].append(f"{name}: {tile} gives other bits")
                replay = stage.captured(lambda x=x, weight=weight, many=many: fused.linear(x, weight, many=many), where)
                ms = statistics.median(milliseconds(replay, options.turns, where))
                found[tile] = round(2 * rows * columns * inputs / ms / 1e9, 1)
            print(f"-- {name}: {found}", flush=True)
    return figures
