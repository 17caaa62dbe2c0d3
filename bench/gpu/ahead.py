"""What kernels gain by being started before the one in front of them ends (kernels/dependent.py), in the shapes of
Llama 3.1 8B and SmolLM2-135M, with random weights: a step's graph is replayed back to back, in turns with the graphs of
the other ways. All ways give the same bits, and if one doesn't, its kernels didn't wait.

    python -m bench gpu_ahead                                    all ways, both shapes, 1, 16 and 64 rows
    python -m bench gpu_ahead --shapes 8B --rows 64 --ways "wait,early,ahead 32 KiB"
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from bench.gpu import stage
from bench.gpu.stage import PAGE_TOKENS, RandomWeights
from bench.shown import Shown
from kernels.launch import starting
from models.batch import Batch, Stretch, make_batch
from models.executor import Options
from models.spec import Network

if TYPE_CHECKING:
    from kernels.dependent import Starts

HELP = "a step with kernels that start after, beside and ahead of each other: device time, in turns"
SHAPES = {"8B": stage.LLAMA_8B, "SmolLM2": stage.SMOLLM2}
ROWS, CONTEXT, REPLAYS = (1, 16, 64), 1024, 5
# Fields of kernels/dependent.py's Starts.
WAYS: dict[str, dict[str, Any]] = {
    "not dependent": {"dependent": False, "early": "none", "ahead": 0},
    "wait": {"early": "none", "ahead": 0},
    "early": {"ahead": 0},
    "ahead 32 KiB": {"ahead": 32 << 10},
    "ahead 128 KiB": {"ahead": 128 << 10},
}
# Only if they are asked for: their kernels have to be compiled, too.
OTHERS: dict[str, dict[str, Any]] = {
    "all early": {"early": "all", "ahead": 0},
    "ahead 16 KiB": {"ahead": 16 << 10},
    "ahead 64 KiB": {"ahead": 64 << 10},
    "ahead 32 KiB in lines of 128": {"ahead": 32 << 10, "line": 128},
}
SHOWN = (
    Shown("Kernels that start ahead, ms of a step", "shapes>*>*",
          say="Device time. Before, kernels were started as under `wait`; now, as under `ahead 32 KiB`."),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    stage.flags(parser)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of: {', '.join(WAYS | OTHERS)}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from kernels.dependent import Starts

    where = stage.device(options)
    figures = stage.facts(where) | {"shapes": {}, "missed": []}
    rows, context = ((1, 2), 40) if options.dry_run else (tuple(map(int, options.rows.split(","))), CONTEXT)
    ways = {name: Starts(**(WAYS | OTHERS)[name]) for name in options.ways.split(",")}
    for name in options.shapes.split(","):
        shape = stage.shape_of(SHAPES[name], options)
        found, wrong = timed(shape, rows, context, ways, options.turns, where)
        figures["shapes"][name] = found
        figures["missed"] += [f"{name}, {each}: other bits than before" for each in wrong]
        gc.collect()
    return figures


def timed(
    shape: Network, rows: tuple[int, ...], context: int, ways: dict[str, Starts], turns: int, where: torch.device
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Way -> rows -> milliseconds; and which ways gave other logits than the first."""
    from models.gpu.executor import GpuExecutor

    each = -(-context // PAGE_TOKENS)
    options = Options("bfloat16", max(rows) * each, PAGE_TOKENS, context, graph_rows=max(rows))
    weights: Any = RandomWeights(shape, where)
    executor = GpuExecutor(shape, weights, options, device=where.type)
    found: dict[str, dict[str, float]] = {name: {} for name in ways}
    wrong: list[str] = []
    for count in rows:
        tables = [range(n * each, (n + 1) * each) for n in range(count)]
        batch = make_batch([Stretch([7 + n], context - 1, table, 0) for n, table in enumerate(tables)], PAGE_TOKENS)
        replays = {name: captured(executor, batch, starts) for name, starts in ways.items()}
        logits = executor._logits[:count]
        next(iter(replays.values()))()
        right = logits.clone()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(turns):
            for name, replay in replays.items():
                times[name].append(replayed_ms(replay, where))
                if not torch.equal(logits, right):
                    wrong.append(f"{name}, {count} rows")
        for name, ms in times.items():
            found[name][f"{count} rows"] = round(statistics.median(ms), 4)
        print(f"-- {count} rows: { {name: own[f'{count} rows'] for name, own in found.items()} }", flush=True)
    return found, sorted(set(wrong))


def captured(executor: Any, batch: Batch, starts: Starts) -> Callable[[], Any]:
    """The step's graph with kernels that start so. The inputs stay in their place: no copy is in it."""
    executor.forward(batch)
    bucket = executor._graphs.bucket_of(len(batch.tokens))
    with starting(starts):
        return executor._on.capture(partial(executor._run_fixed, bucket))


def replayed_ms(replay: Callable[[], Any], where: torch.device) -> float:
    """Of one of several replays. The first, untimed, keeps the device busy while the host starts the others."""
    if where.type != "cuda":
        replay()
        return 0.0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    begin.record()
    for _ in range(REPLAYS):
        replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / REPLAYS
