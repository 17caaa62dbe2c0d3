"""Decoding on the GPU with random weights in the shape of Llama 3.1 8B: 1, 16 and 64 sequences, against the weights and
the keys and values that a step must read; strict and fast.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from typing import Any

import torch

from bench import gpu_device
from bench.gpu_device import PAGE_TOKENS, RandomWeights
from models.batch import Stretch, make_batch
from models.executor import Options
from models.spec import Network

HELP = "Llama-8B's shape: a step of 1, 16 and 64 sequences against the bytes it must read"
BATCHES, CONTEXT = (1, 16, 64), 1024
# A step of one sequence over the time of reading the weights.
BAR = 1.2


def flags(parser: argparse.ArgumentParser) -> None:
    gpu_device.flags(parser)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    where = gpu_device.device(options)
    shape = gpu_device.shape_of(gpu_device.LLAMA_8B, options)
    rate = gpu_device.bandwidth(where)
    figures = gpu_device.facts(where) | {"read_gb_s": round(rate, 1)}
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

    each = -(-context // PAGE_TOKENS)
    options = Options("bfloat16", max(batches) * each, PAGE_TOKENS, context, strict=strict)
    made: Any = RandomWeights(shape, where)
    executor = GpuExecutor(shape, made, options, device=where.type)
    weights = gpu_device.weight_bytes(executor, shape)
    keys = executor.page_bytes(shape, options) * each
    found: dict[str, Any] = {"path": executor.path, "weights_gb": round(weights / 1e9, 3)}
    found |= {"step_ms": {}, "times_limit": {}}
    for count in batches:
        tables = [range(n * each, (n + 1) * each) for n in range(count)]
        batch = make_batch([Stretch([7 + n], context - 1, table, 0) for n, table in enumerate(tables)], PAGE_TOKENS)
        times = gpu_device.wall_ms(lambda: executor.forward(batch).logits.argmax(-1).cpu(), turns, where)  # noqa: B023
        # The first ones compile.
        ms = statistics.median(times[turns // 4 :])
        limit = (weights + count * keys) / rate / 1e6
        found["step_ms"][f"batch {count}"], found["times_limit"][f"batch {count}"] = round(ms, 3), round(ms / limit, 3)
    return found


def missed(figures: dict[str, Any]) -> list[str]:
    """`fast` is held to it; what `strict` costs beside it is its price."""
    ratio = figures["fast"]["times_limit"]["batch 1"]
    return [f"batch 1 takes {ratio} times the bytes' limit, the bar is {BAR}"] if ratio > BAR else []
