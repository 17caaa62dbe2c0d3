"""Measures block sizes of kernels/gemm on this device, and writes the fastest into the table (tiles.py).

    python -m kernels.gemm.tune                      the linears of Llama 3.1 8B and SmolLM2 135M, a few minutes
    python -m kernels.gemm.tune --shape 4096x14336   columns x inputs; may be given again
    python -m kernels.gemm.tune --dry-run            two toy shapes, in the interpreter where there is no GPU

One tile serves all row counts, because a row's bits may not depend on them: the least sum of times at 1, 16 and 64
rows wins. A candidate that doesn't give the product is left out and told. Needs torch and triton alone.

What is timed is a graph, because a launch takes the host longer than a small weight the device, over copies of the
weight that are more than a cache holds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from kernels import interpreter

interpreter.use_without_gpu()

import torch  # noqa: E402

from kernels.ahead_of_time import SHARED_LIMIT  # noqa: E402
from kernels.device import device_of  # noqa: E402
from kernels.device_times import milliseconds  # noqa: E402
from kernels.gemm import fused, tiles  # noqa: E402
from kernels.gemm.tiles import Tile  # noqa: E402
from kernels.launch import architecture  # noqa: E402

LLAMA_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
SMOLLM2 = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))
TOYS = ((96, 64), (64, 128))
# Of gates and ups: what runs has an activation at its end.
GATES = (LLAMA_8B[2], SMOLLM2[2], TOYS[0])
ROWS, TURNS = (1, 16, 64), 12
# Ranges of K.
SPLITS = (1, 2, 4, 8)
# More than any cache, and no more copies than this.
UNCACHED_BYTES, MOST_COPIES = 1 << 28, 48


def candidates(arch: int, dry: bool) -> Iterator[Tile]:
    if dry:
        yield from (Tile(32, 32, 2, 4), Tile(64, 64, 2, 4))
        return
    limit = SHARED_LIMIT.get(arch, min(SHARED_LIMIT.values()))
    for block_n, block_k, stages, splits in product((32, 64, 128), (64, 128), (3, 4), SPLITS):
        if 2 * stages * block_k * (fused.BLOCK_M + block_n) <= limit:
            yield Tile(block_n, block_k, stages, 8 if block_n == 128 else 4, splits)


def tune(columns: int, inputs: int, device: torch.device, dry: bool) -> Tile | None:
    """The fastest tile of a weight; None: no candidate was right."""
    weight = torch.randn(columns, inputs, dtype=torch.bfloat16, device=device) / inputs**0.5
    x = torch.randn(ROWS[-1], inputs, dtype=torch.bfloat16, device=device)
    expected = torch.nn.functional.linear(x.float(), weight.float())
    copies = 1 if dry else min(MOST_COPIES, -(-UNCACHED_BYTES // weight.nbytes))
    weights = [weight, *(weight.clone() for _ in range(copies - 1))]
    rows = (1,) if dry else ROWS
    by_rule = sum(_milliseconds(x[:count], weights, None, device, dry) for count in rows)
    best: tuple[float, Tile] | None = None
    for tile in candidates(architecture(device), dry):
        try:
            found = fused.linear(x, weight, out_dtype=torch.float32, tile=tile)
            if not torch.allclose(found, expected, rtol=2e-2, atol=2e-2):
                print(f"  {tile}: not the product, left out", flush=True)
                continue
            took = sum(_milliseconds(x[:count], weights, tile, device, dry) for count in rows)
        except Exception as error:  # A compiler refuses a size: the others are tried.
            print(f"  {tile}: {type(error).__name__}", flush=True)
            continue
        if best is None or took < best[0]:
            best = took, tile
    if best is None:
        return None
    print(f"  {by_rule * 1e3:.1f} us by the rule, {best[0] * 1e3:.1f} with the best tile", flush=True)
    return best[1]


def _milliseconds(
    x: torch.Tensor, weights: Sequence[torch.Tensor], tile: Tile | None, device: torch.device, dry: bool
) -> float:
    """Of one product."""
    activation = "silu" if weights[0].shape in GATES else ""

    def run() -> None:
        for weight in weights:
            fused.linear(x, weight, tile=tile, activation=activation)

    replay = device_of(device).capture(run)
    return statistics.median(milliseconds(replay, 1 if dry else TURNS, device)) / len(weights)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.gemm.tune", description="Measures block sizes on a GPU.")
    parser.add_argument("--shape", action="append", default=[], metavar="NxK", help="a weight's columns x inputs")
    parser.add_argument("--out", type=Path, default=tiles.TABLE, help="the table to write")
    parser.add_argument("--dry-run", action="store_true", help="two toy shapes; with --out elsewhere, for tests")
    options = parser.parse_args(words)
    if interpreter.in_use() and not (options.dry_run and options.out != tiles.TABLE):
        parser.exit(1, "no GPU here: times of the interpreter belong into no table (--dry-run --out FILE tries it)\n")
    device = torch.device("cpu" if interpreter.in_use() else "cuda")
    asked = [tuple(map(int, shape.split("x"))) for shape in options.shape]
    for columns, inputs in asked or (TOYS if options.dry_run else (*LLAMA_8B, *SMOLLM2)):
        tile = tune(columns, inputs, device, options.dry_run)
        name = tiles.key(architecture(device), columns, inputs, "bfloat16")
        print(f"{name}: {tile or 'no candidate is right'}", flush=True)
        if tile is not None:
            # After each shape: what is measured isn't lost.
            tiles.write(options.out, {name: tile})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
