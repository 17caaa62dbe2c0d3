"""Measures on this device what `shape` in fused.py chooses: lengths of splits, one loop or one a split, and stages.

    python -m kernels.paged_attention.tune            Llama 3.1 8B's attention, under a minute
    python -m kernels.paged_attention.tune --dry-run  one small context, in the interpreter where there is no GPU

A row of JSON for each choice: microseconds of a layer by sequences, context, and queries of each; where it says
"whole" there are no slots, so that no program takes a part of a context. Choices are compared with the first. What is
timed is a graph, over pages that are more than a cache holds. Needs torch, triton and numba alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass, replace

from kernels import interpreter

interpreter.use_without_gpu()

import torch  # noqa: E402

from kernels.device import device_of  # noqa: E402
from kernels.device_times import milliseconds  # noqa: E402
from kernels.launch import architecture  # noqa: E402
from kernels.paged_attention import fused  # noqa: E402
from kernels.paged_attention.fused import FusedShape  # noqa: E402
from kernels.paged_attention.plan import plan  # noqa: E402
from kernels.paged_attention.work import AttentionWork, Partials  # noqa: E402

HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS, DTYPE = 32, 8, 128, 16, torch.bfloat16
SLOTS, TURNS = 4096, 20
# Of the pages of all layers, at least.
UNCACHED_BYTES, MOST_LAYERS = 1 << 28, 16


@dataclass(frozen=True, slots=True)
class Load:
    sequences: int
    context: int
    queries: int
    slots: int = SLOTS


LOADS = [Load(1, 1024, 1), Load(1, 4096, 1), Load(1, 4096, 5), Load(16, 4096, 1), Load(16, 4096, 5),
         Load(16, 4096, 1, slots=0), Load(64, 1024, 1), Load(64, 4096, 1), Load(64, 4096, 5)]  # fmt: skip
TOY = [Load(2, 40, 5)]


def choices(first: FusedShape) -> list[FusedShape]:
    """The one that is used, and others."""
    others = [replace(first, split=split) for split in (128, 256, 512)]
    others += [replace(first, split=512, flat=False), replace(first, stages=first.stages - 1)]
    return list(dict.fromkeys([first, *others]))


def measure(load: Load, chosen: FusedShape, device: torch.device, turns: int) -> tuple[float, torch.Tensor]:
    """Microseconds of a layer, and what the first one gives."""
    pages, rows = -(-load.context // PAGE_TOKENS), load.sequences * load.queries
    each = 2 * load.sequences * pages * PAGE_TOKENS * KV_HEADS * HEAD_DIM * DTYPE.itemsize
    layers = 1 if turns == 1 else min(MOST_LAYERS, -(-UNCACHED_BYTES // each))
    torch.manual_seed(0)
    shape = (2, load.sequences * pages, KV_HEADS, PAGE_TOKENS, HEAD_DIM)
    caches = [torch.randn(shape, device=device, dtype=DTYPE) for _ in range(layers)]
    queries = torch.randn(rows, HEADS, HEAD_DIM, device=device, dtype=DTYPE)
    outs = [torch.empty_like(queries) for _ in range(layers)]
    tables = torch.arange(load.sequences * pages, dtype=torch.int32, device=device).view(load.sequences, pages)
    first = load.context - load.queries
    positions = torch.arange(first, load.context, dtype=torch.int32, device=device).repeat(load.sequences)
    work = AttentionWork(rows, load.slots, device)
    partials = Partials.make(load.slots, HEADS, HEAD_DIM, device)
    limits = fused.sizes(queries, caches[0][0], load.slots, chosen=chosen)
    firsts = [sequence * load.queries for sequence in range(load.sequences)]
    work.put(plan(limits, firsts, [load.queries] * load.sequences, [first] * load.sequences))

    def run() -> None:
        for (keys, values), out in zip(caches, outs, strict=True):
            fused.attend_planned(
                queries, keys, values, tables, positions, HEAD_DIM**-0.5, work, partials, out, chosen=chosen
            )

    replay = device_of(device).capture(run)
    return statistics.median(milliseconds(replay, turns, device)) * 1e3 / layers, outs[0]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.paged_attention.tune", description=__doc__.split("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="one small context, for tests")
    options = parser.parse_args(words)
    if interpreter.in_use() and not options.dry_run:
        parser.exit(1, "no GPU here (--dry-run tries it)\n")
    device = torch.device("cpu" if interpreter.in_use() else "cuda")
    used = fused.shape(HEAD_DIM, HEADS // KV_HEADS, DTYPE, architecture(device))
    known: dict[Load, torch.Tensor] = {}
    for chosen in choices(used)[:2] if options.dry_run else choices(used):
        row: dict[str, float] = {}
        for load in TOY if options.dry_run else LOADS:
            us, out = measure(load, chosen, device, 1 if options.dry_run else TURNS)
            torch.testing.assert_close(out, known.setdefault(load, out), rtol=2e-2, atol=2e-2)
            whole = "" if load.slots else " whole"
            row[f"{load.sequences} at {load.context}, {load.queries}{whole}"] = round(us, 2)
        print(json.dumps({"used": chosen == used, **asdict(chosen), "us": row}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
