"""Decoding on the GPU with random weights in the shape of Llama 3.1 8B: 1, 16 and 64 sequences, against the weights and
the keys and values that a step must read; eight rows of one sequence, as a draft makes them, against one row; and how
long the host takes to begin a step. Strict and fast.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.gpu import stage
from bench.gpu.stage import PAGE_TOKENS, RandomWeights
from bench.shown import Shown
from models.batch import Batch, Stretch, make_batch
from models.executor import Options
from models.spec import Network

HELP = "Llama-8B's shape: a step of 1, 16 and 64 sequences against the bytes it must read"
BATCHES, CONTEXT = (1, 16, 64), 1024
ROWS = 8
# A step of one sequence over the time of reading the weights; a step of eight rows over one of one row; microseconds of
# the host.
BARS = {"batch 1": 1.2, "rows_over_one": 1.1, "host_us": 150.0}
SHOWN = (
    Shown("Decoding on the GPU", "strict|fast>step_ms|times_limit",
          say="Random weights in the shape of Llama 3.1 8B. The limit is the time to read what a step must read."),
)  # fmt: skip
flags = stage.flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    where = stage.device(options)
    shape = stage.shape_of(stage.LLAMA_8B, options)
    rate = stage.bandwidth(where)
    figures = stage.facts(where) | {"read_gb_s": round(rate, 1)}
    batches, context = ((1, 2), 40) if options.dry_run else (BATCHES, CONTEXT)
    for strict in (False, True):
        name = "strict" if strict else "fast"
        figures[name] = decoded(shape, strict, batches, context, rate, options.turns, where)
        print(f"-- {name}: {figures[name]}", flush=True)
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()
    return figures | {"missed": [] if options.dry_run else missed(figures)}


def decoded(
    shape: Network, strict: bool, batches: tuple[int, ...], context: int, rate: float, turns: int, where: torch.device
) -> dict[str, Any]:
    from models.gpu.executor import GpuExecutor

    each = -(-(context + ROWS) // PAGE_TOKENS)
    options = Options("bfloat16", max(batches) * each, PAGE_TOKENS, context + ROWS, strict=strict)
    made: Any = RandomWeights(shape, where)
    executor = GpuExecutor(shape, made, options, device=where.type)
    weights = stage.weight_bytes(executor, shape)
    keys = executor.page_bytes(shape, options) * -(-context // PAGE_TOKENS)
    found: dict[str, Any] = {"path": executor.path, "weights_gb": round(weights / 1e9, 3)}
    found |= {"step_ms": {}, "times_limit": {}}

    def step_ms(batch: Batch) -> float:
        times = stage.wall_ms(lambda: executor.forward(batch).logits.argmax(-1).cpu(), turns, where)
        # The first ones compile.
        return statistics.median(times[turns // 4 :])

    for count in batches:
        tables = [range(n * each, (n + 1) * each) for n in range(count)]
        stretches = [Stretch([7 + n], context - 1, table, 0) for n, table in enumerate(tables)]
        ms = step_ms(make_batch(stretches, PAGE_TOKENS))
        limit = (weights + count * keys) / rate / 1e6
        found["step_ms"][f"batch {count}"], found["times_limit"][f"batch {count}"] = round(ms, 3), round(ms / limit, 3)
    rows = step_ms(make_batch([Stretch([7] * ROWS, context - 1, range(each), 0)], PAGE_TOKENS))
    found["step_ms"][f"rows {ROWS}"] = round(rows, 3)
    found["rows_over_one"] = round(rows / found["step_ms"]["batch 1"], 3)
    # Of the largest batch, with what makes it: both are the host's.
    found["host_us"] = round(host_us(lambda: executor.forward(make_batch(stretches, PAGE_TOKENS)), turns, where), 1)
    return found


def host_us(call: Callable[[], Any], turns: int, where: torch.device) -> float:
    """Of a call that waits for nothing, begun when the device is idle."""
    times = []
    for _ in range(turns):
        stage.wait(where)
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e6)
    stage.wait(where)
    return statistics.median(times)


def missed(figures: dict[str, Any]) -> list[str]:
    wrong = []
    for name in ("strict", "fast"):
        found = figures[name] | {"batch 1": figures[name]["times_limit"]["batch 1"]}
        over = {bar: found[bar] for bar in BARS if found[bar] > BARS[bar]}
        wrong += [f"{name}: {bar} is {value}, the bar is {BARS[bar]}" for bar, value in over.items()]
    return wrong
