"""Our kernels beside torch's own, cuBLAS and SDPA, in the shapes of Llama 3.1 8B: device times, in turns."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch

from bench.gpu import attention, stage
from kernels.gemm import fused as gemm

# Of 8B's layer and its head: outputs and inputs.
LINEARS = {
    "qkv": (6144, 4096), "output": (4096, 4096), "gate, up": (28672, 4096), "down": (4096, 14336),
    "head": (128256, 4096),
}  # fmt: skip
TOY_LINEAR = (64, 32)
ROWS, REPLAYS = (1, 16, 64, 256, 2048), 10
# More than a cache holds.
UNCACHED_BYTES = 1 << 28
# Sequences, context, and queries of each.
ATTENTION = ((1, 4096, 1), (16, 4096, 1), (64, 4096, 1), (1, 2048, 2048))


def linear(
    figures: dict[str, Any], name: str, shape: tuple[int, int], rows: tuple[int, ...], turns: int, where: torch.device
) -> None:
    """Ours and cuBLAS' in turns, each over weights that no cache holds; the head's sums stay float32 in ours."""
    outputs, inputs = shape
    copies = -(-UNCACHED_BYTES // (2 * outputs * inputs)) if where.type == "cuda" else 1
    weights = [torch.randn(outputs, inputs, device=where).mul_(inputs**-0.5).bfloat16() for _ in range(copies)]
    for count in rows:
        x = torch.randn(count, inputs, device=where).bfloat16()
        dtype = torch.float32 if name == "head" else torch.bfloat16
        mine, other = gemm.linear(x, weights[0], out_dtype=dtype).float(), torch.nn.functional.linear(x, weights[0])
        torch.testing.assert_close(mine, other.float(), atol=5e-2, rtol=5e-2)
        del mine, other

        def ours(x: torch.Tensor = x, dtype: torch.dtype = dtype) -> None:
            for weight in weights:
                gemm.linear(x, weight, out_dtype=dtype)

        def theirs(x: torch.Tensor = x) -> None:
            for weight in weights:
                torch.nn.functional.linear(x, weight)

        found = in_turns(ours, theirs, copies, turns, where)
        figures["kernels"].setdefault(name, {})[f"{count} row{'s' * (count > 1)}"] = found
        print(f"-- {name}, {count} rows: {found}", flush=True)


def attended(
    figures: dict[str, Any], sequences: int, context: int, queries: int, turns: int, where: torch.device
) -> None:
    layers, sdpa = attention.LAYERS if where.type == "cuda" else 1, torch.nn.functional.scaled_dot_product_attention
    shape = (sequences, attention.KV_HEADS, context, attention.HEAD_DIM)
    cache = [[torch.randn(shape, device=where).bfloat16() for _ in range(2)] for _ in range(layers)]
    asked = torch.randn(sequences, attention.HEADS, queries, attention.HEAD_DIM, device=where).bfloat16()

    def theirs() -> None:
        for keys, values in cache:
            sdpa(asked, keys, values, is_causal=queries > 1, enable_gqa=True)

    with torch.inference_mode():
        ms = stage.replayed_ms(stage.captured(theirs, where), REPLAYS, turns, where)
    cache.clear()
    found = {"ours": round(attention.layer_us(sequences, context, queries, layers, turns, where), 2)}
    found["theirs"] = round(ms * 1e3 / layers, 2)
    found["ratio"] = round(found["ours"] / found["theirs"], 3)
    size = f"{sequences} x {context}, {queries} quer{'ies' if queries > 1 else 'y'}"
    figures["kernels"].setdefault("attention", {})[size] = found
    print(f"-- attention, {sequences} x {context}, {queries} queries: {found}", flush=True)
    _freed(where)


def in_turns(
    ours: Callable[[], None], theirs: Callable[[], None], calls: int, turns: int, where: torch.device
) -> dict[str, float]:
    """Microseconds of one of `calls`."""
    with torch.inference_mode():
        sides = [stage.captured(ours, where), stage.captured(theirs, where)]
        seen: list[list[float]] = [[], []]
        for _ in range(3):
            for side, times in zip(sides, seen, strict=True):
                times.append(stage.replayed_ms(side, REPLAYS, max(1, turns // 10), where) * 1e3 / calls)
    own, other = (statistics.median(times) for times in seen)
    return {"ours": round(own, 2), "theirs": round(other, 2), "ratio": round(own / other, 3)}


def _freed(where: torch.device) -> None:
    gc.collect()
    if where.type == "cuda":
        torch.cuda.empty_cache()
