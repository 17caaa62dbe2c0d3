"""A step of a small model by its rows: the device's time strict and fast, and the host's with graphs and without.

Random weights in the shape of SmolLM2-135M: the smaller the model, the more of a step the host is. The device's times
are of a step's graph, replayed back to back; wall times are from the batch to the arg-max on the host, with row counts
in turns.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from functools import partial
from typing import Any

import torch

from bench.gpu import stage
from bench.gpu.stage import PAGE_TOKENS, RandomWeights
from bench.shown import Shown
from models.batch import Batch, Stretch, make_batch
from models.executor import Executor, Options
from models.spec import Network

HELP = "step time of a small model by rows: the device's strict and fast, the host's with graphs and without"
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Of a step without a graph, which is ten times as long.
EAGER_ROWS = (1, 64, 256)
CONTEXT, REPLAYS = 300, 20
# The kernels of these are named.
LOOKED_INTO = ("rows 1", "rows 64")
# Eight rows over one; strict over fast.
ROWS_OVER_ONE = STRICT_OVER_FAST = 1.03
SHOWN = (
    Shown("Steps of a small model on the GPU, ms",
          "strict|fast|graphs|eager>device_ms|over_fast|step_ms|device_busy_ms",
          {f"rows {count}": f"rows {count}" for count in (1, 8, 64, 256)},
          "Random weights in the shape of SmolLM2-135M. What a step takes beyond the device's time is the host's."),
)  # fmt: skip
flags = stage.flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    where = stage.device(options)
    shape = stage.shape_of(stage.SMOLLM2, options)
    figures = stage.begun(options, where)
    figures["read_gb_s"] = round(rate := stage.bandwidth(where), 1)
    rows, eager_rows, context = ((1, 8), (1,), 8) if options.dry_run else (ROWS, EAGER_ROWS, CONTEXT)
    untimed = 0 if options.dry_run else 3
    for name, strict, graphs in (("strict", True, True), ("fast", False, True), ("eager", True, False)):
        found, chosen = figures.setdefault(name, {}), rows if graphs else eager_rows
        executor, batches = made(shape, strict, graphs, chosen, context, where)
        found["path"] = executor.path
        if graphs:
            replayed(found, executor, batches, stage.weight_bytes(executor, shape) / rate / 1e6, options.turns, where)
        if name != "fast":
            stepped(found, executor, batches, options.turns, where, untimed)
        print(f"-- {name}: {found}", flush=True)
        del executor
        gc.collect()
    figures["strict"]["over_fast"] = stage.ratios(figures["strict"]["device_ms"], figures["fast"]["device_ms"])
    return figures | {"missed": [] if options.dry_run else missed(figures)}


def made(
    shape: Network, strict: bool, graphs: bool, rows: tuple[int, ...], context: int, where: torch.device
) -> tuple[Any, dict[str, Batch]]:
    from models.gpu.executor import GpuExecutor

    pages = -(-(context + max(rows)) // PAGE_TOKENS)
    options = Options("bfloat16", pages, PAGE_TOKENS, min(shape.max_context, pages * PAGE_TOKENS), strict=strict)
    weights: Any = RandomWeights(shape, where)
    executor = GpuExecutor(shape, weights, options, device=where.type, graphs=graphs)
    stretches = {f"rows {n}": Stretch([7] * n, context, range(pages), 0) for n in rows}
    return executor, {name: make_batch([stretch], PAGE_TOKENS) for name, stretch in stretches.items()}


def replayed(
    found: dict[str, Any], executor: Any, batches: dict[str, Batch], limit_ms: float, turns: int, where: torch.device
) -> None:
    """The device alone. `limit_ms`: of reading the weights."""
    found |= {"device_ms": {}, "of_bytes": {}, "kernels": {}}
    for name, batch in batches.items():
        ms = stage.replayed_ms(stage.step_replay(executor, batch), REPLAYS, turns // 4 or 1, where)
        found["device_ms"][name], found["of_bytes"][name] = round(ms, 4), round(ms / limit_ms, 2)
    found["rows_over_one"] = round(found["device_ms"]["rows 8"] / found["device_ms"]["rows 1"], 3)
    for name in LOOKED_INTO:
        if name in batches and executor.strict:
            found["kernels"][name] = stage.kernel_us(stage.step_replay(executor, batches[name]), where)


def stepped(
    found: dict[str, Any], executor: Any, batches: dict[str, Batch], turns: int, where: torch.device, untimed: int
) -> None:
    """Whole steps, and how long each keeps the device busy by torch's profiler."""
    wall: dict[str, list[float]] = {name: [] for name in batches}
    calls = {name: partial(_step, executor, batch) for name, batch in batches.items()}
    for turn in range(turns + untimed):
        for name, call in calls.items():
            [ms] = stage.wall_ms(call, 1, where)
            if turn >= untimed:
                wall[name].append(ms)
    found["step_ms"] = {name: round(statistics.median(times), 4) for name, times in wall.items()}
    found["device_busy_ms"] = {name: round(stage.busy_ms(call, 10, where), 4) for name, call in calls.items()}


def _step(executor: Executor, batch: Batch) -> None:
    executor.forward(batch).logits.argmax(-1).cpu()


def missed(figures: dict[str, Any]) -> list[str]:
    found = [
        f"{name}: 8 rows take {figures[name]['rows_over_one']} x one, the bar is {ROWS_OVER_ONE}"
        for name in ("strict", "fast")
        if figures[name]["rows_over_one"] > ROWS_OVER_ONE
    ]
    over = {name: ratio for name, ratio in figures["strict"]["over_fast"].items() if ratio > STRICT_OVER_FAST}
    return found + [f"{name}: strict takes {each} x fast, the bar is {STRICT_OVER_FAST}" for name, each in over.items()]
