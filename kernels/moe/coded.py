"""Experts' linears over coded weights: the codes of kernels/quant, in the tiles of kernels/moe/fused.py. Codes become
numbers of x's dtype on their way into the matrix unit, so an expert takes the memory, and the reading, of its codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.ahead_of_time import Compilation, signature_of
from kernels.dependent import wait_for_kernel_before
from kernels.gemm.ending import put
from kernels.launch import ceil_div, launch
from kernels.quant.fused import KINDS, coded_range, coded_tile_of

# Rows of a tile: the fewest that matrix instructions take. An expert seldom gets more in a decoding step.
BLOCK_M = 16


@dataclass(frozen=True, slots=True)
class CodedExperts:
    """One linear of all experts, as kernels/quant reads a matrix."""

    codes: torch.Tensor  # [E, N, K] int8 or float8_e4m3fn, or [E, N, K/2 in whole steps] uint8 (quant's halves_apart)
    scales: torch.Tensor  # [E, N / block_rows rounded up, groups]
    zeros: torch.Tensor | None  # [E, N, groups]
    groups: torch.Tensor | None  # [E, K]: the group of each input, where groups aren't neighbours
    inputs: int
    group_size: int
    block_rows: int

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def outputs(self) -> int:
        return self.codes.shape[1]


@triton.jit
def put_pairs(
    total, bias, out, columns: tl.constexpr, pair, first, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    LIMIT: tl.constexpr,
):  # fmt: skip
    """Sums [places, columns from `first` on], to the rows of their pairs; -1: nowhere."""
    # More than there are pairs.
    NOWHERE: tl.constexpr = 1 << 30
    put(total, bias, out, NOWHERE, columns, tl.where(pair < 0, NOWHERE, pair), first, HAS_BIAS, ACTIVATION, LIMIT)


@triton.jit
def expert_coded_kernel(
    x, codes, scales, zeros, groups, bias, places, tile_experts, out,
    columns: tl.constexpr, inputs: tl.constexpr, PAIRS_OF_A_ROW: tl.constexpr,
    KIND: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, ROWS_OF_A_SCALE: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_GROUPS: tl.constexpr, ONE_GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """out[pair] = weight[expert of pair] · x[pair // PAIRS_OF_A_ROW]."""
    wait_for_kernel_before()
    BYTES: tl.constexpr = (inputs + BLOCK_K - 1) // BLOCK_K * BLOCK_K // 2 if KIND == 2 else inputs
    SCALES: tl.constexpr = (columns + ROWS_OF_A_SCALE - 1) // ROWS_OF_A_SCALE * GROUPS
    # A row that no tile has: what stands at an empty place.
    NOBODY: tl.constexpr = 1 << 30
    tile = tl.program_id(1)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert >= 0:
        pair = tl.load(places + tile * BLOCK_M + tl.arange(0, BLOCK_M))
        row = tl.where(pair >= 0, pair // PAIRS_OF_A_ROW, NOBODY)
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        total = coded_range(
            x, codes + expert * (columns * BYTES), scales + expert * SCALES, zeros + expert * (columns * GROUPS),
            groups + expert * inputs, NOBODY, columns, inputs, inputs, row, n, 0, inputs, KIND, GROUPS, GROUP,
            ROWS_OF_A_SCALE, HAS_ZEROS, HAS_GROUPS, ONE_GROUP, BLOCK_M, BLOCK_N, BLOCK_K, IEEE,
        )  # fmt: skip
        first = tl.program_id(0) * BLOCK_N
        put_pairs(tl.trans(total), bias + expert * columns, out, columns, pair, first, HAS_BIAS, ACTIVATION, LIMIT)


def expert_coded(
    x: torch.Tensor,  # [pairs / pairs_of_a_row, K]
    weight: CodedExperts,
    bias: torch.Tensor,
    places: torch.Tensor,
    tile_experts: torch.Tensor,
    out: torch.Tensor,  # [pairs, N], or with an activation [pairs, N / 2]
    pairs_of_a_row: int,
    ending: Mapping[str, Any],
) -> None:
    assert x.shape[1] == weight.inputs
    kind, scales = KINDS[weight.codes.dtype], weight.scales
    tile = tile_of(weight.inputs, 0 if weight.groups is not None else weight.group_size, x.dtype)
    raw = weight.codes.view(torch.uint8) if kind == 1 else weight.codes
    launch(
        expert_coded_kernel, (ceil_div(weight.outputs, tile["BLOCK_N"]), len(tile_experts)),
        x, raw, scales, scales if weight.zeros is None else weight.zeros,
        scales if weight.groups is None else weight.groups, bias, places, tile_experts, out,
        columns=weight.outputs, inputs=weight.inputs, PAIRS_OF_A_ROW=pairs_of_a_row, KIND=kind,
        GROUPS=scales.shape[2], GROUP=weight.group_size, ROWS_OF_A_SCALE=weight.block_rows,
        HAS_ZEROS=weight.zeros is not None, HAS_GROUPS=weight.groups is not None, **ending, **tile,
    )  # fmt: skip


def tile_of(inputs: int, group: int, dtype: torch.dtype) -> dict[str, int]:
    tile = coded_tile_of(inputs, group, dtype) | {"BLOCK_M": BLOCK_M, "warps": 4}
    return tile | {"BLOCK_N": min(tile["BLOCK_N"], 64)}


def compilations(arch: int) -> Iterator[Compilation]:
    """DeepSeek-V3's experts in fp8 blocks, Qwen3's in 4 bits."""
    types = dict.fromkeys(("bias", "places", "tile_experts", "groups"), "*i32") | {"x": "*bf16", "zeros": "*i16"}
    for name, codes, out, columns, inputs, group, rows, kind, zeros in (
        ("fp8", "*u8", "*bf16", 4096, 7168, 128, 128, 1, False),
        ("int4", "*u8", "*bf16", 1536, 2048, 128, 1, 2, True),
        ("int8 down", "*i8", "*fp32", 2048, 768, 768, 1, 0, False),
    ):
        tile = tile_of(inputs, group, torch.bfloat16)
        warps, stages = tile.pop("warps"), tile.pop("stages")
        constants = tile | {
            "columns": columns, "inputs": inputs, "PAIRS_OF_A_ROW": 8, "KIND": kind, "GROUPS": inputs // group,
            "GROUP": group, "ROWS_OF_A_SCALE": rows, "HAS_ZEROS": zeros, "HAS_GROUPS": False, "HAS_BIAS": False,
            "ACTIVATION": -1 if name == "int8 down" else 0, "LIMIT": 0.0,
        }  # fmt: skip
        given = types | {"codes": codes, "out": out, "scales": "*fp32" if kind != 2 else "*fp16"}
        signature = signature_of(expert_coded_kernel, given, constants)
        yield Compilation(f"expert_coded {name}", expert_coded_kernel, signature, constants, warps, stages)
