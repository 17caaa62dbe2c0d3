"""Decoding on the GPU with random weights in the shape of Llama 3.1 8B: 1 to 256 sequences, against the weights and the
keys and values that a step must read; and eight rows of one sequence, as a draft makes them, against one row. Strict
and fast.

The device's time is of a step's graph, replayed back to back. Beside it stands a step from the batch to the arg-max on
the host, and how long the host takes to begin one.
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

HELP = "Llama-8B's shape: a step of 1 to 256 sequences, strict and fast, against the bytes it must read"
BATCHES, CONTEXT = (1, 16, 64, 256), 1024
ROWS, REPLAYS = 8, 10
# The kernels of these are named.
LOOKED_INTO = ("batch 1", "batch 64")
# The device's time over that of reading what a step must read; eight rows over one; strict over fast.
OF_BYTES = {"batch 1": 1.20, "batch 16": 1.25, "batch 64": 1.30, "batch 256": 1.35}
ROWS_OVER_ONE = STRICT_OVER_FAST = 1.03
SHOWN = (
    Shown("Decoding on the GPU", "strict|fast>device_ms|over_fast|of_bytes|step_ms|times_limit",
          say="Random weights in the shape of Llama 3.1 8B. over_fast, of_bytes: the device's time over that of fast, "
              "over the time to read what a step must. step_ms, and times_limit of older rows, contain the host's."),
)  # fmt: skip
flags = stage.flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    where = stage.device(options)
    shape = stage.shape_of(stage.LLAMA_8B, options)
    figures = stage.begun(options, where)
    figures["read_gb_s"] = round(rate := stage.bandwidth(where), 1)
    batches, context = ((1, 2), 40) if options.dry_run else (BATCHES, CONTEXT)
    for strict in (True, False):
        found = figures.setdefault("strict" if strict else "fast", {})
        decoded(found, shape, strict, batches, context, rate, options.turns, where)
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()
    figures["strict"]["over_fast"] = stage.ratios(figures["strict"]["device_ms"], figures["fast"]["device_ms"])
    return figures | {"missed": [] if options.dry_run else missed(figures)}


def decoded(
    found: dict[str, Any], shape: Network, strict: bool, batches: tuple[int, ...], context: int, rate: float,
    turns: int, where: torch.device,
) -> None:  # fmt: skip
    """Fills `found`."""
    from models.gpu.executor import GpuExecutor

    each = -(-(context + ROWS) // PAGE_TOKENS)
    options = Options("bfloat16", max(batches) * each, PAGE_TOKENS, context + ROWS, strict=strict)
    made: Any = RandomWeights(shape, where)
    executor = GpuExecutor(shape, made, options, device=where.type)
    weights = stage.weight_bytes(executor, shape)
    keys = executor.page_bytes(shape, options) * -(-context // PAGE_TOKENS)
    found |= {"path": executor.path, "weights_gb": round(weights / 1e9, 3)}
    found |= {"device_ms": {}, "step_ms": {}, "of_bytes": {}, "kernels": {}}

    def timed(name: str, batch: Batch) -> None:
        device_ms = stage.replayed_ms(stage.step_replay(executor, batch), REPLAYS, turns // 4 or 1, where)
        whole = stage.wall_ms(lambda: executor.forward(batch).logits.argmax(-1).cpu(), turns, where)
        found["device_ms"][name] = round(device_ms, 3)
        # The first ones compile.
        found["step_ms"][name] = round(statistics.median(whole[turns // 4 :]), 3)

    def many(count: int) -> Batch:
        tables = [range(n * each, (n + 1) * each) for n in range(count)]
        return make_batch([Stretch([7 + n % 50], context - 1, table, 0) for n, table in enumerate(tables)], PAGE_TOKENS)

    for count in batches:
        timed(name := f"batch {count}", many(count))
        limit = (weights + count * keys) / rate / 1e6
        found["of_bytes"][name] = round(found["device_ms"][name] / limit, 3)
        told = {what: found[what][name] for what in ("device_ms", "of_bytes", "step_ms")}
        print(f"-- {'strict' if strict else 'fast'}, {name}: {told}", flush=True)
    timed(f"rows {ROWS}", make_batch([Stretch([7] * ROWS, context - 1, range(each), 0)], PAGE_TOKENS))
    found["rows_over_one"] = round(found["device_ms"][f"rows {ROWS}"] / found["device_ms"]["batch 1"], 3)
    # With what makes the batch: both are the host's.
    stretches = [Stretch([7], context - 1, range(n * each, (n + 1) * each), 0) for n in range(batches[-1])]
    found["host_us"] = round(host_us(lambda: executor.forward(make_batch(stretches, PAGE_TOKENS)), turns, where), 1)
    for name in LOOKED_INTO:
        if name in found["device_ms"]:
            replay = stage.step_replay(executor, many(int(name.split()[1])))
            found["kernels"][name] = stage.kernel_us(replay, where)


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
    found = []
    for name in ("strict", "fast"):
        own = figures[name]
        for size, bar in OF_BYTES.items():
            if (times := own["of_bytes"][size]) > bar:
                found.append(f"{name}, {size}: {times} x its bytes, the bar is {bar}")
        if own["rows_over_one"] > ROWS_OVER_ONE:
            found.append(f"{name}: 8 rows take {own['rows_over_one']} x one, the bar is {ROWS_OVER_ONE}")
    for size, ratio in figures["strict"]["over_fast"].items():
        if ratio > STRICT_OVER_FAST:
            found.append(f"{size}: strict takes {ratio} x fast, the bar is {STRICT_OVER_FAST}")
    return found
