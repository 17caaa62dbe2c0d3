"""A step of a small model by its rows, with CUDA graphs and without; what the host adds to what the device is busy.

Random weights in the shape of SmolLM2-135M: the smaller the model, the more of a step the host is. Wall times are from
the batch to the arg-max on the host; row counts take turns.
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

HELP = "step time of a small model by rows, with graphs and without, and the host's exposed share"
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT = 300
# Milliseconds of a step of eight rows, and what the host may add to a step that is replayed as a graph.
BARS = {"rows 8": 0.5, "exposed": 0.3}
SHOWN = (
    Shown("Steps of a small model on the GPU, ms", "graphs|eager>step_ms|device_busy_ms",
          {f"rows {count}": f"rows {count}" for count in (1, 64, 256)},
          "Random weights in the shape of SmolLM2-135M. What a step takes beyond the device's time is the host's."),
)  # fmt: skip
flags = stage.flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    where = stage.device(options)
    shape = stage.shape_of(stage.SMOLLM2, options)
    figures = stage.facts(where) | {"overlap": "counted once"}
    rows, context = ((1, 8), 8) if options.dry_run else (ROWS, CONTEXT)
    untimed = 0 if options.dry_run else 3
    for name, graphs in (("graphs", True), ("eager", False)):
        figures[name] = timed(shape, graphs, rows, context, options.turns, where, untimed)
        gc.collect()
    return figures | {"missed": [] if options.dry_run else missed(figures)}


def timed(
    shape: Network, graphs: bool, rows: tuple[int, ...], context: int, turns: int, where: torch.device,
    untimed: int,
) -> dict[str, Any]:  # fmt: skip
    from models.gpu.executor import GpuExecutor

    pages = -(-(context + max(rows)) // PAGE_TOKENS)
    options = Options("bfloat16", pages, PAGE_TOKENS, min(shape.max_context, pages * PAGE_TOKENS))
    weights: Any = RandomWeights(shape, where)
    executor = GpuExecutor(shape, weights, options, device=where.type, graphs=graphs)
    batches = {f"rows {n}": make_batch([Stretch([7] * n, context, range(pages), 0)], PAGE_TOKENS) for n in rows}
    wall: dict[str, list[float]] = {name: [] for name in batches}
    calls = {name: partial(_step, executor, batch) for name, batch in batches.items()}
    for turn in range(turns + untimed):
        for name, call in calls.items():
            [ms] = stage.wall_ms(call, 1, where)
            if turn >= untimed:
                wall[name].append(ms)
    step_ms = {name: round(statistics.median(times), 4) for name, times in wall.items()}
    # What is known should the profiler break.
    print(f"-- {'graphs' if graphs else 'eager'}: {step_ms}", flush=True)
    busy = {name: round(stage.busy_ms(call, 10, where), 4) for name, call in calls.items()}
    exposed = {name: round(step_ms[name] - busy[name], 4) for name in batches}
    return {"path": executor.path, "step_ms": step_ms, "device_busy_ms": busy,
            "exposed_ms": exposed, "steps": dict(executor.steps)}  # fmt: skip


def _step(executor: Executor, batch: Batch) -> None:
    executor.forward(batch).logits.argmax(-1).cpu()


def missed(figures: dict[str, Any]) -> list[str]:
    graphs, found = figures["graphs"], []
    if graphs["step_ms"]["rows 8"] > BARS["rows 8"]:
        found.append(f"rows 8 take {graphs['step_ms']['rows 8']} ms with a graph, the bar is {BARS['rows 8']}")
    for name, ms in graphs["exposed_ms"].items():
        if ms > BARS["exposed"]:
            found.append(f"{name}: {ms} ms of the host are exposed, the bar is {BARS['exposed']}")
    return found
