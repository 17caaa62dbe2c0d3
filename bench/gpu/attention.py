"""Attention alone on the GPU, in the shape of Llama 3.1 8B's layers: one query a sequence, and five (a draft of four),
against the keys and values that must be read.

Layers take turns over pages of their own, more than any cache holds, as one CUDA graph, replayed back to back.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from bench.gpu import stage
from bench.gpu.stage import PAGE_TOKENS
from bench.shown import Shown

HELP = "attention with 1 and 5 queries a sequence, against the bytes of keys and values"
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SIZES = ((1, 1024), (1, 4096), (16, 4096), (64, 1024), (64, 4096), (256, 1024))
QUERIES = (1, 5)
LAYERS, SLOTS, REPLAYS = 4, 2048, 10
# Five queries over one; and one query where so much is read, of the rate at which the device reads.
FIVE_OVER_ONE, OF_BANDWIDTH, LOADED_BYTES = 1.05, 0.85, 256 << 20
SHOWN = (Shown("Attention on the GPU, µs, in the shape of Llama 3.1 8B", "us>*"),)
flags = stage.flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    where = stage.device(options)
    figures = stage.begun(options, where)
    rate = stage.bandwidth(where)
    sizes, layers = (((2, 40),), 1) if options.dry_run else (SIZES, LAYERS)
    figures |= {"read_gb_s": round(rate, 1), "read_mb": {}, "us": {}, "of_bandwidth": {}, "five_over_one": {}}
    for sequences, context in sizes:
        name = f"{sequences} at {context}"
        us = {queries: layer_us(sequences, context, queries, layers, options.turns, where) for queries in QUERIES}
        read = 2 * sequences * context * KV_HEADS * HEAD_DIM * 2
        figures["read_mb"][name] = round(read / (1 << 20), 1)
        figures["us"][name] = {f"{queries} queries": round(each, 2) for queries, each in us.items()}
        figures["of_bandwidth"][name] = {f"{q} queries": round(read / each / 1e3 / rate, 3) for q, each in us.items()}
        figures["five_over_one"][name] = round(us[5] / us[1], 3)
        print(f"-- {name}: {figures['us'][name]} us, {figures['of_bandwidth'][name]}", flush=True)
    return figures | {"missed": [] if options.dry_run else missed(figures)}


def missed(figures: dict[str, Any]) -> list[str]:
    found = [
        f"{name}: 5 queries take {ratio} times as long as 1, the bar is {FIVE_OVER_ONE}"
        for name, ratio in figures["five_over_one"].items()
        if ratio > FIVE_OVER_ONE
    ]
    for name, read in figures["read_mb"].items():
        share = figures["of_bandwidth"][name]["1 queries"]
        if read * (1 << 20) >= LOADED_BYTES and share < OF_BANDWIDTH:
            found.append(f"{name}: {share} of the bandwidth, the bar is {OF_BANDWIDTH}")
    return found


def layer_us(sequences: int, context: int, queries: int, layers: int, turns: int, where: torch.device) -> float:
    from kernels.paged_attention import fused
    from kernels.paged_attention.plan import plan
    from kernels.paged_attention.work import AttentionWork, Partials

    pages, rows = -(-context // PAGE_TOKENS), sequences * queries
    cache = [
        [torch.randn(sequences * pages, KV_HEADS, PAGE_TOKENS, HEAD_DIM, device=where).bfloat16() for _ in range(2)]
        for _ in range(layers)
    ]
    asked = torch.randn(rows, HEADS, HEAD_DIM, device=where).bfloat16()
    out = torch.empty_like(asked)
    tables = torch.arange(sequences * pages, dtype=torch.int32, device=where).view(sequences, pages)
    first = context - queries
    positions = torch.arange(first, context, dtype=torch.int32, device=where).repeat(sequences)
    work, partials = AttentionWork(rows, SLOTS, where), Partials.make(SLOTS, HEADS, HEAD_DIM, where)
    limits = fused.sizes(asked, cache[0][0], SLOTS)
    work.put(plan(limits, [n * queries for n in range(sequences)], [queries] * sequences, [first] * sequences))

    def run() -> None:
        for keys, values in cache:
            fused.attend_planned(asked, keys, values, tables, positions, HEAD_DIM**-0.5, work, partials, out)

    with torch.inference_mode():
        ms = stage.replayed_ms(stage.captured(run, where), REPLAYS, turns, where)
    assert out.isfinite().all()
    return ms * 1e3 / layers
