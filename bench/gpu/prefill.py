"""Prompts on the GPU with random weights in the shape of Llama 3.1 8B: tokens per second by length, and how much of the
device's own rate of multiplying that is.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from bench.gpu import stage
from bench.gpu.stage import PAGE_TOKENS, RandomWeights
from bench.shown import Shown
from models.batch import Stretch
from models.executor import Options
from models.passes import forward

HELP = "Llama-8B's shape: prompt tokens per second against the device's rate of bf16 products"
LENGTHS = (512, 2048, 8192)
SHOWN = (Shown("Prompts on the GPU, in the shape of Llama 3.1 8B", "tokens_per_s|of_matmul"),)
flags = stage.flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from models.gpu.executor import GpuExecutor

    where = stage.device(options)
    shape = stage.shape_of(stage.LLAMA_8B, options)
    tflops = stage.matmul_tflops(where)
    lengths = (40,) if options.dry_run else LENGTHS
    pages = -(-max(lengths) // PAGE_TOKENS)
    made = Options("bfloat16", pages, PAGE_TOKENS, max(lengths), strict=False)
    weights: Any = RandomWeights(shape, where)
    executor = GpuExecutor(shape, weights, made, device=where.type, graphs=False)
    figures = stage.facts(where) | {"matmul_tflops": round(tflops, 1), "tokens_per_s": {}, "of_matmul": {}}
    # A linear takes two operations for a weight and token; the head's are for one token.
    each = 2 * (stage.weight_bytes(executor, shape, 1) - shape.head.outputs * shape.head.inputs)
    for length in lengths:
        stretch = Stretch([7 + n % 50 for n in range(length)], 0, range(pages), length - 1)

        def run(stretch: Stretch = stretch) -> None:
            forward(executor, [stretch], PAGE_TOKENS).logits.argmax(-1).cpu()

        run()
        seconds = statistics.median(stage.wall_ms(run, min(options.turns, 5), where)) / 1e3
        figures["tokens_per_s"][f"{length} tokens"] = round(length / seconds, 1)
        figures["of_matmul"][f"{length} tokens"] = round(each * length / seconds / 1e12 / tflops, 3)
    return figures | {"missed": []}
