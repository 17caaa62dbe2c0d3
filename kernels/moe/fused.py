"""A mixture of experts in Triton: who goes where, and the experts' linears over rows sorted by expert.

    route    [R, E] scores          -> ids [R, top_k] ascending, weights [R, top_k]
    sort     pairs (row, choice)    -> places in tiles of BLOCK_M that belong to one expert each; -1: empty
    linear   a tile times the weight of its expert, to the place of the pair; gates with their ups
    combine  Σ weight · what the expert gave, in ascending order of the experts

A row's bits don't depend on the rows that share its expert: a tile's rows are independent, its shape and the order
of its sums come from the weight's shape. Nothing here waits for the host: the grid is of the most tiles that there
can be, and tiles that aren't used end at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.ahead_of_time import Compilation, signature_of
from kernels.dependent import start_next_early, wait_for_kernel_before
from kernels.gemm.ranges import Product, product_of, read_product
from kernels.launch import ceil_div, launch, power_of_two
from kernels.moe import coded
from kernels.moe.coded import BLOCK_M, CodedExperts, expert_coded, put_pairs
from kernels.norm_rope_act.fused import ACTIVATIONS

_PAIRS = 1024


@triton.jit
def _lowest_best(values, at, SIZE: tl.constexpr):
    """Where the highest value stands; the lower place wins a tie."""
    return tl.min(tl.where(values == tl.max(values, axis=0), at, SIZE), axis=0)


@triton.jit(do_not_specialize=["rows"])
def route_kernel(
    logits, added, bias, ids, weights, rows, epsilon, scale,
    EXPERTS: tl.constexpr, BLOCK: tl.constexpr, TOP_K: tl.constexpr, SIGMOID: tl.constexpr, HAS_BIAS: tl.constexpr,
    NORMALIZE: tl.constexpr, FLOOR: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    GROUP_BY_BEST: tl.constexpr, GROUP_BLOCK: tl.constexpr, SPLITS: tl.constexpr, IS_ADDED: tl.constexpr,
):  # fmt: skip
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < EXPERTS
    x = read_product(logits, added, row, rows, at, inside, EXPERTS, SPLITS, IS_ADDED, tl.float32)
    x = tl.where(inside, x, float("-inf"))
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-x))
    else:
        powers = tl.exp(x - tl.max(x, axis=0))
        scores = powers / tl.sum(powers, axis=0)
    by = scores
    if HAS_BIAS:
        by += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    by = tl.where(inside, by, float("-inf"))
    if GROUPS > 1:
        group_of = at // (EXPERTS // GROUPS)
        places = tl.arange(0, GROUP_BLOCK)
        worth = tl.full((GROUP_BLOCK,), float("-inf"), dtype=tl.float32)
        for group in tl.static_range(GROUPS):
            own = tl.where(group_of == group, by, float("-inf"))
            value = tl.max(own, axis=0)
            if not GROUP_BY_BEST:
                value += tl.max(tl.where(at == _lowest_best(own, at, BLOCK), float("-inf"), own), axis=0)
            worth = tl.where(places == group, value, worth)
        open_ = tl.zeros((BLOCK,), dtype=tl.int32)
        for _ in tl.static_range(TOP_GROUPS):
            best = _lowest_best(worth, places, GROUP_BLOCK)
            open_ = tl.where(group_of == best, 1, open_)
            worth = tl.where(places == best, float("-inf"), worth)
        by = tl.where(open_ == 1, by, float("-inf"))
    chosen = tl.zeros((BLOCK,), dtype=tl.int32)
    for _ in tl.static_range(TOP_K):
        best = _lowest_best(by, at, BLOCK)
        chosen = tl.where(at == best, 1, chosen)
        by = tl.where(at == best, float("-inf"), by)
    total = tl.sum(tl.where(chosen == 1, scores, 0.0), axis=0)
    if NORMALIZE:
        below = tl.maximum(total, epsilon) if FLOOR else total + epsilon
        scores = scores / below
    for place in tl.static_range(TOP_K):
        expert = tl.min(tl.where(chosen == 1, at, BLOCK), axis=0)
        weight = tl.sum(tl.where(at == expert, scores, 0.0), axis=0)
        # Scores that are no numbers choose nobody; that must show in the row.
        weight = tl.where(expert < BLOCK, weight, float("nan"))
        tl.store(ids + row * TOP_K + place, expert)
        tl.store(weights + row * TOP_K + place, weight * scale)
        chosen = tl.where(at == expert, 0, chosen)


@triton.jit(do_not_specialize=["pairs", "most_tiles"])
def place_kernel(
    ids, places, tile_experts, pairs, most_tiles,
    EXPERTS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Expert e's pairs, in their order, fill the tiles after those of the experts before it. The last expert
    marks the tiles that nobody fills."""
    start_next_early()
    wait_for_kernel_before()
    expert = tl.program_id(0)
    experts = tl.arange(0, EXPERTS_BLOCK)
    # Every program counts the pairs of all experts, which saves a kernel.
    counts = tl.zeros((EXPERTS_BLOCK,), dtype=tl.int32)
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        chosen = tl.load(ids + at, mask=at < pairs, other=-1)
        counts += tl.histogram(chosen, EXPERTS_BLOCK, mask=(chosen >= 0) & (chosen < EXPERTS))
    tiles = (counts + BLOCK_M - 1) // BLOCK_M
    first = tl.sum(tl.where(experts < expert, tiles, 0), axis=0)
    own = tl.sum(tl.where(experts == expert, tiles, 0), axis=0)
    lane = tl.arange(0, BLOCK_M)
    for tile in range(first, first + own):
        tl.store(tile_experts + tile, expert)
        tl.store(places + tile * BLOCK_M + lane, tl.full((BLOCK_M,), -1, dtype=tl.int32))
    if expert == EXPERTS - 1:
        for tile in range(first + own, most_tiles):
            tl.store(tile_experts + tile, -1)
    # What stands above must not arrive after what stands below.
    tl.debug_barrier()
    done = first * BLOCK_M
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mine = (tl.load(ids + at, mask=at < pairs, other=-1) == expert).to(tl.int32)
        tl.store(places + done + tl.cumsum(mine, axis=0) - 1, at, mask=mine == 1)
        done += tl.sum(mine, axis=0)


@triton.jit
def expert_linear_kernel(
    x, weight, bias, places, tile_experts, out,
    columns: tl.constexpr, inputs: tl.constexpr, PAIRS_OF_A_ROW: tl.constexpr, HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """out[pair] = weight[expert of pair] · x[pair // PAIRS_OF_A_ROW], with the ending of kernels/gemm."""
    wait_for_kernel_before()
    tile = tl.program_id(1)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert >= 0:
        pair = tl.load(places + tile * BLOCK_M + tl.arange(0, BLOCK_M))
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        row = (pair // PAIRS_OF_A_ROW).to(tl.int64)
        weight_rows = weight + (expert * columns + n)[None, :] * inputs
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, inputs, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            a = tl.load(
                x + row[:, None] * inputs + k[None, :], mask=(pair >= 0)[:, None] & (k < inputs)[None, :], other=0.0
            )
            b = tl.load(weight_rows + k[:, None], mask=(n < columns)[None, :] & (k < inputs)[:, None], other=0.0)
            if IEEE:
                total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
            else:
                total = tl.dot(a, b, total)
        first = tl.program_id(0) * BLOCK_N
        put_pairs(total, bias + expert * columns, out, columns, pair, first, HAS_BIAS, ACTIVATION, LIMIT)


@triton.jit
def combine_kernel(
    given, weights, shared, bias, ids, out, width: tl.constexpr, TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = Σ weights[row, i] · (given[row, i] + bias of its expert) (+ shared[row])."""
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        pair = row * TOP_K + choice
        weight = tl.load(weights + pair)
        # Of weight 0 are experts of another rank: nothing was given.
        there = at < tl.where(weight == 0.0, 0, width)
        value = tl.load(given + pair * width + at, mask=there, other=0.0).to(tl.float32)
        if HAS_BIAS:
            own = bias + tl.maximum(tl.load(ids + pair), 0).to(tl.int64) * width
            value += tl.load(own + at, mask=there, other=0.0)
        total += weight * value
    if HAS_SHARED:
        total += tl.load(shared + row * width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, total, mask=inside)


def route(
    logits: Product,  # [R, E]; ranges: of a product in float32
    bias: torch.Tensor | None,  # [E]
    *,
    top_k: int,
    scoring: str,
    normalize: bool,
    epsilon: float,
    normalize_floor: bool,
    scale: float,
    groups: int,
    top_groups: int,
    group_by_best: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # [R, top_k] int32, [R, top_k] float32
    """The experts of every row, ids ascending, and their weights."""
    product, added, read = product_of(logits, torch.float32)
    rows, experts_ = product.shape[-2:]
    ids = torch.empty(rows, top_k, dtype=torch.int32, device=product.device)
    weights = torch.empty(rows, top_k, dtype=torch.float32, device=product.device)
    launch(
        route_kernel, (rows,), product, added, product if bias is None else bias, ids, weights, rows, epsilon, scale,
        EXPERTS=experts_, BLOCK=power_of_two(experts_), TOP_K=top_k, SIGMOID=scoring == "sigmoid",
        HAS_BIAS=bias is not None, NORMALIZE=normalize, FLOOR=normalize_floor, GROUPS=groups, TOP_GROUPS=top_groups,
        GROUP_BY_BEST=group_by_best, GROUP_BLOCK=power_of_two(groups), SPLITS=read["SPLITS"],
        IS_ADDED=read["HAS_BIAS"], warps=1 if experts_ <= 256 else 4,
    )  # fmt: skip
    return ids, weights


def sort_by_expert(ids: torch.Tensor, experts_: int) -> tuple[torch.Tensor, torch.Tensor]:
    """places [tiles · BLOCK_M] int32: the pair (row · top_k + choice) that stands there, -1: none;
    tile_experts [tiles] int32, -1: a tile that nobody fills."""
    pairs = ids.numel()
    # A tile has at least one pair; all but one tile of an expert are full.
    most = min(pairs, pairs // BLOCK_M + experts_)
    places = torch.empty(most * BLOCK_M, dtype=torch.int32, device=ids.device)
    tile_experts = torch.empty(most, dtype=torch.int32, device=ids.device)
    block = min(_PAIRS, power_of_two(pairs, 16))
    launch(
        place_kernel, (experts_,), ids, places, tile_experts, pairs, most,
        EXPERTS=experts_, EXPERTS_BLOCK=power_of_two(experts_), BLOCK_M=BLOCK_M, BLOCK=block,
    )  # fmt: skip
    return places, tile_experts


def expert_linear(
    x: torch.Tensor,  # [pairs / pairs_of_a_row, K]
    weight: torch.Tensor | CodedExperts,  # [E, N, K]
    places: torch.Tensor,
    tile_experts: torch.Tensor,
    pairs: int,
    pairs_of_a_row: int,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,  # [E, N] float32
    activation: str = "",
    limit: float = 0.0,
) -> torch.Tensor:  # [pairs, N]
    """With an `activation`, as kernels/gemm: of gates and ups by turns, [pairs, N / 2]."""
    assert x.is_contiguous()
    columns = weight.outputs if isinstance(weight, CodedExperts) else weight.shape[1]
    out = torch.empty(pairs, columns // 2 if activation else columns, dtype=out_dtype, device=x.device)
    ending = {
        "HAS_BIAS": bias is not None, "ACTIVATION": ACTIVATIONS.index(activation) if activation else -1,
        "LIMIT": float(limit),
    }  # fmt: skip
    added = places if bias is None else bias
    if isinstance(weight, CodedExperts):
        expert_coded(x, weight, added, places, tile_experts, out, pairs_of_a_row, ending)
        return out
    assert weight.is_contiguous()
    tile = tile_of(torch.promote_types(x.dtype, weight.dtype))
    launch(
        expert_linear_kernel, (ceil_div(columns, tile["BLOCK_N"]), len(tile_experts)), x, weight, added, places,
        tile_experts, out, columns=columns, inputs=weight.shape[2], PAIRS_OF_A_ROW=pairs_of_a_row, **ending, **tile,
    )  # fmt: skip
    return out


def combine(
    given: torch.Tensor,  # [R · top_k, H]
    weights: torch.Tensor,  # [R, top_k]
    shared: torch.Tensor | None,  # [R, H]
    bias: torch.Tensor | None = None,  # [E, H] float32
    ids: torch.Tensor | None = None,  # [R, top_k] int32
) -> torch.Tensor:  # [R, H] float32
    (rows, top_k), width = weights.shape, given.shape[1]
    out = torch.empty(rows, width, dtype=torch.float32, device=given.device)
    block = min(1024, power_of_two(width))
    launch(
        combine_kernel, (rows, ceil_div(width, block)), given, weights, given if shared is None else shared,
        weights if bias is None else bias, weights if ids is None else ids, out,
        width=width, TOP_K=top_k, HAS_SHARED=shared is not None, HAS_BIAS=bias is not None, BLOCK=block,
    )  # fmt: skip
    return out


def experts(
    x: torch.Tensor,  # [R, H]
    gate_up: torch.Tensor | CodedExperts,  # [E, 2·I, H]: gates and ups by turns (kernels/gemm/ending.py)
    down: torch.Tensor | CodedExperts,  # [E, H, I]
    ids: torch.Tensor,  # [R, top_k] int32, ascending in a row
    weights: torch.Tensor,  # [R, top_k] float32
    shared: torch.Tensor | None = None,  # [R, H], added last
    activation: str = "silu",
    limit: float = 0.0,
    biases: tuple[torch.Tensor, torch.Tensor] | None = None,  # [E, 2·I], by turns, too, and [E, H] float32
) -> torch.Tensor:  # [R, H] float32
    pairs, top_k = ids.numel(), ids.shape[1]
    places, tile_experts = sort_by_expert(ids, len(gate_up))
    first, last = (None, None) if biases is None else biases
    inner = expert_linear(x, gate_up, places, tile_experts, pairs, top_k, x.dtype, first, activation, limit)
    given = expert_linear(inner, down, places, tile_experts, pairs, 1, torch.float32)
    return combine(given, weights, shared, last, ids)


def tile_of(dtype: torch.dtype) -> dict[str, int]:
    if dtype == torch.float32:
        return {"BLOCK_M": BLOCK_M, "BLOCK_N": 32, "BLOCK_K": 32, "IEEE": True, "stages": 2}
    return {"BLOCK_M": BLOCK_M, "BLOCK_N": 64, "BLOCK_K": 128, "IEEE": False, "stages": 3}


def compilations(arch: int) -> Iterator[Compilation]:
    """As DeepSeek-V3 and Qwen3-MoE have them."""
    yield from coded.compilations(arch)
    deepseek = {"EXPERTS": 256, "BLOCK": 256, "TOP_K": 8, "SIGMOID": True, "HAS_BIAS": True, "NORMALIZE": True}
    deepseek |= {"FLOOR": False, "GROUPS": 8, "TOP_GROUPS": 4, "GROUP_BY_BEST": False, "GROUP_BLOCK": 8}
    deepseek |= {"SPLITS": 8, "IS_ADDED": True}
    qwen = deepseek | {"EXPERTS": 128, "BLOCK": 128, "SIGMOID": False, "HAS_BIAS": False, "GROUPS": 1}
    fp32 = dict.fromkeys(("logits", "added", "bias", "weights", "given"), "*fp32")
    fp32 |= dict.fromkeys(("epsilon", "scale"), "fp32")
    types = fp32 | dict.fromkeys(("ids", "places", "tile_experts"), "*i32")
    types |= dict.fromkeys(("rows", "pairs", "most_tiles"), "i32")

    def one(name: str, kernel: Any, constants: dict[str, Any], warps: int = 4, stages: int = 2, **more: str) -> Any:
        signature = signature_of(kernel, types | more, constants)
        return Compilation(name, kernel, signature, constants, warps, stages)

    yield one("route 256 in groups", route_kernel, deepseek, 1)
    yield one("route 128", route_kernel, qwen | {"TOP_GROUPS": 1, "GROUP_BLOCK": 1}, 1)
    sizes = {"EXPERTS": 256, "EXPERTS_BLOCK": 256, "BLOCK_M": BLOCK_M, "BLOCK": _PAIRS}
    yield one("place", place_kernel, sizes)
    for kind, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        tile = tile_of(dtype)
        stages = tile.pop("stages")
        constants = {"columns": 4096, "inputs": 7168, "PAIRS_OF_A_ROW": 8, "HAS_BIAS": True, "ACTIVATION": 0, **tile}
        constants |= {"LIMIT": 0.0}
        pointers = {"x": f"*{kind}", "weight": f"*{kind}", "out": f"*{kind}"}
        yield one(f"expert_linear {kind}", expert_linear_kernel, constants, stages=stages, **pointers)
        constants = {"width": 7168, "TOP_K": 8, "HAS_SHARED": True, "HAS_BIAS": True, "BLOCK": 1024}
        yield one(f"combine {kind}", combine_kernel, constants, shared=f"*{kind}", out="*fp32")
