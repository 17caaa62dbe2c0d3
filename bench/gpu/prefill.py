"""Prompts on the GPU with random weights in the shape of Llama 3.1 8B, strict and fast: tokens per second by length,
and how much of the device's own rate of multiplying that is.

Passes of a prompt run as they are, without graphs, and a short one takes the host longer than the device: so passes are
captured here, and the device's time is of their replays. Beside it stands the whole, from the tokens to the arg-max.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from typing import Any

import torch

from bench.gpu import stage
from bench.gpu.stage import PAGE_TOKENS, RandomWeights
from bench.shown import Shown
from models.batch import Stretch, make_batch
from models.executor import Options
from models.passes import forward
from models.spec import Network

HELP = "Llama-8B's shape: prompt tokens per second, strict and fast, against the device's rate of bf16 products"
LENGTHS = (512, 2048, 8192)
# Times of the device.
STRICT_OVER_FAST, REPLAYS, TURNS = 1.3, 2, 3
SHOWN = (
    Shown("Prompts on the GPU, in the shape of Llama 3.1 8B", "strict_*|fast_*|tokens_per_s|of_matmul",
          say="By the device's time; strict_over_fast is of times. with_host, and tokens_per_s of older rows, which is "
              "of fast: from the tokens to the arg-max."),
)  # fmt: skip
flags = stage.flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    where = stage.device(options)
    shape = stage.shape_of(stage.LLAMA_8B, options)
    figures = stage.begun(options, where)
    figures["matmul_tflops"] = round(tflops := stage.matmul_tflops(where), 1)
    lengths = (40,) if options.dry_run else LENGTHS
    for name in ("strict", "fast"):
        timed(figures, name, shape, lengths, tflops, min(options.turns, TURNS), where)
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()
    figures["strict_over_fast"] = stage.ratios(figures["fast_tokens_per_s"], figures["strict_tokens_per_s"])
    return figures | {"missed": [] if options.dry_run else missed(figures)}


def timed(
    figures: dict[str, Any], name: str, shape: Network, lengths: tuple[int, ...], tflops: float, turns: int,
    where: torch.device,
) -> None:  # fmt: skip
    from models.gpu.executor import GpuExecutor

    pages = -(-max(lengths) // PAGE_TOKENS)
    made = Options("bfloat16", pages, PAGE_TOKENS, max(lengths), strict=name == "strict")
    weights: Any = RandomWeights(shape, where)
    executor = GpuExecutor(shape, weights, made, device=where.type, graphs=False)
    speeds: dict[str, float] = figures.setdefault(f"{name}_tokens_per_s", {})
    whole: dict[str, float] = figures.setdefault(f"{name}_with_host_tokens_per_s", {})
    share: dict[str, float] = figures.setdefault(f"{name}_of_matmul", {})
    # A linear takes two operations for a weight and token; the head's are for one token.
    each = 2 * (stage.weight_bytes(executor, shape, 1) - shape.head.outputs * shape.head.inputs)
    for length in lengths:
        tokens, size = [7 + n % 50 for n in range(length)], f"{length} tokens"

        def run(tokens: list[int] = tokens) -> None:
            stretch = Stretch(tokens, 0, range(pages), len(tokens) - 1)
            forward(executor, [stretch], PAGE_TOKENS).logits.argmax(-1).cpu()

        run()
        seconds = device_seconds(executor, tokens, pages, turns, where)
        speeds[size], share[size] = round(length / seconds, 1), round(each * length / seconds / 1e12 / tflops, 3)
        whole[size] = round(length / statistics.median(stage.wall_ms(run, turns, where)) * 1e3, 1)
        print(f"-- {name}, {size}: {speeds[size]} tokens/s of the device, {whole[size]} with the host", flush=True)


def device_seconds(executor: Any, tokens: list[int], pages: int, turns: int, where: torch.device) -> float:
    """Of all passes, each captured behind its inputs, which stay in their place."""
    total = 0.0
    for first in range(0, len(tokens), executor.max_rows):
        own = tokens[first : first + executor.max_rows]
        last = first + len(own) == len(tokens)
        batch = make_batch([Stretch(own, first, range(pages), len(own) - last)], PAGE_TOKENS)
        with torch.inference_mode():
            step = executor._large.put(batch, len(own))

            def run(step: Any = step, wanted: int = len(batch.wanted)) -> None:
                executor._run(step, wanted, None, None)

            total += stage.replayed_ms(stage.captured(run, where), REPLAYS, turns, where) / 1e3
    return total


def missed(figures: dict[str, Any]) -> list[str]:
    over = {size: ratio for size, ratio in figures["strict_over_fast"].items() if ratio > STRICT_OVER_FAST}
    return [f"{size}: strict takes {ratio} x fast, the bar is {STRICT_OVER_FAST}" for size, ratio in over.items()]
