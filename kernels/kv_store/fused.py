"""Queries turned, keys turned and kept, values kept: one launch between the qkv linear and attention.

A program takes one row and a few heads of one kind; a head is read once, whole, so nothing it computes depends on
which other rows or heads there are.
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
from kernels.quant.fused import to_e4m3

# Numbers that a program holds: 8 of each of its threads.
NUMBERS = 1024


@triton.jit
def as_kept(value, kind: tl.constexpr):
    """A number as pages of this type keep it. Bytes are e4m3 without a scale: ±448 at most."""
    if kind == tl.uint8:
        wide = value.to(tl.float32)
        # NaN stays: a comparison with it is false.
        return to_e4m3(tl.where(wide > 448.0, 448.0, tl.where(wide < -448.0, -448.0, wide)))
    else:
        return value.to(kind)


@triton.jit
def turn(
    source, bias, row, rows, target, places, present, weight, epsilon, cos, sin, position,
    NORMED: tl.constexpr, INTERLEAVED: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    HALF: tl.constexpr, REST: tl.constexpr,
    ROW: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, READ: tl.constexpr,
):  # fmt: skip
    """Heads that begin at columns `places` of a product's row (`read_product`), [H, D], normed and turned, to target
    (pointers, [H, 1]). HALF and REST are powers of two that hold the pairs and the dimensions behind them."""
    i = tl.arange(0, HALF)
    pair = i < WIDTH // 2
    first = 2 * i if INTERLEAVED else i
    second = first + 1 if INTERLEAVED else i + WIDTH // 2
    here = present[:, None] & pair[None, :]
    a = read_product(source, bias, row, rows, places[:, None] + first[None, :], here, ROW, SPLITS, HAS_BIAS, READ)
    b = read_product(source, bias, row, rows, places[:, None] + second[None, :], here, ROW, SPLITS, HAS_BIAS, READ)
    rest = WIDTH + tl.arange(0, REST)
    there = present[:, None] & (rest < D)[None, :]
    if WIDTH < D:
        c = read_product(source, bias, row, rows, places[:, None] + rest[None, :], there, ROW, SPLITS, HAS_BIAS, READ)
    if NORMED:
        squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
        if WIDTH < D:
            squares += tl.sum(c * c, axis=1)
        scale = tl.rsqrt(squares / D + epsilon)[:, None]
        a = a * scale * tl.load(weight + first, mask=pair, other=0.0).to(tl.float32)[None, :]
        b = b * scale * tl.load(weight + second, mask=pair, other=0.0).to(tl.float32)[None, :]
        if WIDTH < D:
            c = c * scale * tl.load(weight + rest, mask=rest < D, other=0.0).to(tl.float32)[None, :]
    turns = position.to(tl.int64) * (WIDTH // 2)
    x = tl.load(cos + turns + i, mask=pair, other=0.0)[None, :]
    y = tl.load(sin + turns + i, mask=pair, other=0.0)[None, :]
    kind = target.dtype.element_ty
    tl.store(target + first[None, :], as_kept(a * x - b * y, kind), mask=here)
    tl.store(target + second[None, :], as_kept(b * x + a * y, kind), mask=here)
    if WIDTH < D:
        tl.store(target + rest[None, :], as_kept(c, kind), mask=there)


@triton.jit
def store_heads(
    source, bias, row, rows, keys, values, slot, block, k_weight, epsilon, cos, sin, position,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    K_NORMED: tl.constexpr, INTERLEAVED: tl.constexpr,
    H: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, WHOLE: tl.constexpr,
    ROW: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, READ: tl.constexpr,
):  # fmt: skip
    """Block `block` of a row's k heads, then of its v heads, to a slot."""
    K_BLOCKS: tl.constexpr = (KV_HEADS + H - 1) // H
    at = slot // PAGE * (KV_HEADS * PAGE * D) + slot % PAGE * D
    if block < K_BLOCKS:
        head = block * H + tl.arange(0, H)
        target = keys + at + head[:, None] * (PAGE * D)
        turn(source, bias, row, rows, target, (HEADS + head) * D, head < KV_HEADS, k_weight, epsilon, cos, sin,
             position, K_NORMED, INTERLEAVED, D, WIDTH, HALF, REST, ROW, SPLITS, HAS_BIAS, READ)  # fmt: skip
    else:
        head = (block - K_BLOCKS) * H + tl.arange(0, H)
        d = tl.arange(0, WHOLE)
        here = (head < KV_HEADS)[:, None] & (d < D)[None, :]
        columns = (HEADS + KV_HEADS + head[:, None]) * D + d[None, :]
        v = read_product(source, bias, row, rows, columns, here, ROW, SPLITS, HAS_BIAS, READ)
        tl.store(values + at + head[:, None] * (PAGE * D) + d[None, :], as_kept(v, values.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["rows"])
def rotate_and_store_kernel(
    qkv, bias, keys, values, slots, also_begins, also_slots, positions, cos, sin, queries, q_weight, k_weight, rows,
    epsilon,
    ROW: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    PAGE: tl.constexpr, Q_NORMED: tl.constexpr, K_NORMED: tl.constexpr, INTERLEAVED: tl.constexpr,
    H: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, WHOLE: tl.constexpr, ALSO: tl.constexpr,
    SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Program (row, block): blocks of H heads of q, then of k, then of v."""
    start_next_early()
    wait_for_kernel_before()
    Q_BLOCKS: tl.constexpr = (HEADS + H - 1) // H
    READ: tl.constexpr = queries.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.load(positions + row)
    slot = tl.load(slots + row)
    if block < Q_BLOCKS:
        head = block * H + tl.arange(0, H)
        target = queries + (row * HEADS + head[:, None]) * D
        turn(qkv, bias, row, rows, target, head * D, head < HEADS, q_weight, epsilon, cos, sin, position,
             Q_NORMED, INTERLEAVED, D, WIDTH, HALF, REST, ROW, SPLITS, HAS_BIAS, READ)  # fmt: skip
    elif slot >= 0:
        store_heads(qkv, bias, row, rows, keys, values, slot, block - Q_BLOCKS, k_weight, epsilon, cos, sin, position,
                    HEADS, KV_HEADS, D, WIDTH, PAGE, K_NORMED, INTERLEAVED, H, HALF, REST, WHOLE,
                    ROW, SPLITS, HAS_BIAS, READ)  # fmt: skip
        if ALSO:
            for i in range(tl.load(also_begins + row), tl.load(also_begins + row + 1)):
                other = tl.load(also_slots + i)
                store_heads(qkv, bias, row, rows, keys, values, other, block - Q_BLOCKS, k_weight, epsilon, cos, sin,
                            position, HEADS, KV_HEADS, D, WIDTH, PAGE, K_NORMED, INTERLEAVED, H, HALF, REST, WHOLE,
                            ROW, SPLITS, HAS_BIAS, READ)  # fmt: skip


@triton.jit
def store_latent(
    kv, bias, row, rows, weight, latents, slot, epsilon, cos, sin, position,
    LATENT: tl.constexpr, ROPE: tl.constexpr, INTERLEAVED: tl.constexpr, HALF: tl.constexpr, WHOLE: tl.constexpr,
    SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, READ: tl.constexpr,
):  # fmt: skip
    """A row's latent, normed, and its key, turned, to a slot."""
    KEPT: tl.constexpr = LATENT + ROPE
    d = tl.arange(0, WHOLE)
    x = read_product(kv, bias, row, rows, d, d < LATENT, KEPT, SPLITS, HAS_BIAS, READ)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / LATENT + epsilon)
    x = x * scale * tl.load(weight + d, mask=d < LATENT, other=0.0).to(tl.float32)
    tl.store(latents + slot * KEPT + d, x.to(latents.dtype.element_ty), mask=d < LATENT)
    one = tl.arange(0, 1)
    target = latents + slot * KEPT + LATENT + one[:, None]
    turn(kv, bias, row, rows, target, LATENT + one, one == 0, weight, epsilon, cos, sin, position,
         False, INTERLEAVED, ROPE, ROPE, HALF, 1, KEPT, SPLITS, HAS_BIAS, READ)  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def rotate_and_store_latent_kernel(
    q, kv, bias, weight, latents, slots, also_begins, also_slots, positions, cos, sin, queries, rows, epsilon,
    HEADS: tl.constexpr, Q_DIM: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, INTERLEAVED: tl.constexpr,
    H: tl.constexpr, HALF: tl.constexpr, WHOLE: tl.constexpr, ALSO: tl.constexpr,
    SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Program (row, block): blocks of H query heads, then the latent with its key."""
    start_next_early()
    wait_for_kernel_before()
    Q_BLOCKS: tl.constexpr = (HEADS + H - 1) // H
    KEPT: tl.constexpr = LATENT + ROPE
    READ: tl.constexpr = queries.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.load(positions + row)
    slot = tl.load(slots + row)
    if block < Q_BLOCKS:
        head = block * H + tl.arange(0, H)
        target = queries + (row * HEADS + head[:, None]) * KEPT + LATENT
        places = head * Q_DIM + Q_DIM - ROPE
        turn(q, q, row, 1, target, places, head < HEADS, weight, epsilon, cos, sin, position,
             False, INTERLEAVED, ROPE, ROPE, HALF, 1, HEADS * Q_DIM, 0, False, q.dtype.element_ty)  # fmt: skip
    elif slot >= 0:
        store_latent(kv, bias, row, rows, weight, latents, slot, epsilon, cos, sin, position,
                     LATENT, ROPE, INTERLEAVED, HALF, WHOLE, SPLITS, HAS_BIAS, READ)  # fmt: skip
        if ALSO:
            for i in range(tl.load(also_begins + row), tl.load(also_begins + row + 1)):
                store_latent(kv, bias, row, rows, weight, latents, tl.load(also_slots + i), epsilon, cos, sin, position,
                             LATENT, ROPE, INTERLEAVED, HALF, WHOLE, SPLITS, HAS_BIAS, READ)  # fmt: skip


def heads_at_once(head_dim: int) -> int:
    return max(1, NUMBERS // power_of_two(head_dim))


def _constants(
    heads: int, kv_heads: int, head_dim: int, width: int, page_tokens: int,
    q_normed: bool, k_normed: bool, interleaved: bool,
) -> dict[str, int | bool]:  # fmt: skip
    return {
        "HEADS": heads, "KV_HEADS": kv_heads, "D": head_dim, "WIDTH": width, "PAGE": page_tokens,
        "Q_NORMED": q_normed, "K_NORMED": k_normed, "INTERLEAVED": interleaved,
        "H": heads_at_once(head_dim), "HALF": power_of_two(width // 2),
        "REST": power_of_two(head_dim - width), "WHOLE": power_of_two(head_dim),
    }  # fmt: skip


def _latent_constants(heads: int, q_dim: int, latent: int, rope: int, interleaved: bool) -> dict[str, int | bool]:
    return {
        "HEADS": heads, "Q_DIM": q_dim, "LATENT": latent, "ROPE": rope, "INTERLEAVED": interleaved,
        "H": heads_at_once(rope), "HALF": power_of_two(rope // 2), "WHOLE": power_of_two(latent),
    }  # fmt: skip


def rotate_and_store(
    qkv: Product,  # ranges: of a product of the queries' dtype
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    queries: torch.Tensor,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    epsilon: float = 0.0,
    interleaved: bool = False,
    also: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    kv_heads, page_tokens, head_dim = keys.shape[1:]
    rows, heads = queries.shape[:2]
    product, bias, read = product_of(qkv, queries.dtype)
    assert product.stride(-1) == 1 and queries.is_contiguous() and keys.is_contiguous() and values.is_contiguous()
    constants = _constants(
        heads,
        kv_heads,
        head_dim,
        2 * cos.shape[1],
        page_tokens,
        q_weight is not None,
        k_weight is not None,
        interleaved,
    )
    blocks = ceil_div(heads, constants["H"]) + 2 * ceil_div(kv_heads, constants["H"])
    launch(
        rotate_and_store_kernel, (rows, blocks), product, bias, keys, values, slots, *(also or (positions, slots)),
        positions, cos, sin, queries,
        # Where there is no norm the kernel gets another pointer in its place, and doesn't read it.
        product if q_weight is None else q_weight, product if k_weight is None else k_weight, rows, epsilon,
        warps=4, ALSO=also is not None, ROW=product.stride(-2), **read, **constants,
    )  # fmt: skip


def rotate_and_store_latent(
    q: torch.Tensor,
    kv: Product,  # ranges: of a product of the queries' dtype
    weight: torch.Tensor,
    epsilon: float,
    latents: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    queries: torch.Tensor,
    interleaved: bool = False,
    also: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    rows, heads, q_dim = q.shape
    product, bias, read = product_of(kv, queries.dtype)
    assert q.is_contiguous() and product.is_contiguous() and queries.is_contiguous() and latents.is_contiguous()
    constants = _latent_constants(heads, q_dim, len(weight), 2 * cos.shape[1], interleaved)
    launch(
        rotate_and_store_latent_kernel, (rows, ceil_div(heads, constants["H"]) + 1),
        q, product, bias, weight, latents, slots, *(also or (positions, slots)), positions, cos, sin, queries, rows,
        epsilon, warps=4, ALSO=also is not None, **read, **constants,
    )  # fmt: skip


def compilations(arch: int) -> Iterator[Compilation]:
    """Shapes of Llama 8B, Qwen3 with its norms, SmolLM2 in float32, a partial turn, and DeepSeek, with second slots;
    Llama also without, and of ranges."""
    for name, dtype, constants in (
        ("llama-8b", "*bf16", _constants(32, 8, 128, 128, 16, False, False, False)),
        ("qwen3", "*bf16", _constants(32, 8, 128, 128, 32, True, True, False)),
        ("smollm2", "*fp32", _constants(9, 3, 64, 64, 16, False, False, False)),
        ("partial", "*fp16", _constants(32, 32, 80, 32, 16, False, False, True)),
    ):
        types = dict.fromkeys(("qkv", "bias", "keys", "values", "queries", "q_weight", "k_weight"), dtype) | _TYPES
        row = {"ROW": (constants["HEADS"] + 2 * constants["KV_HEADS"]) * constants["D"], "SPLITS": 0, "HAS_BIAS": False}
        for also in (False, True) if name == "llama-8b" else (True,):
            yield _compilation(f"rotate_and_store {name}", rotate_and_store_kernel, types, constants | row, also)
        if name == "llama-8b":
            of_ranges = constants | row | {"SPLITS": 2}
            own = types | {"qkv": "*fp32", "bias": "*fp32"}
            yield _compilation("rotate_and_store llama-8b, of ranges", rotate_and_store_kernel, own, of_ranges, False)
            types |= {"keys": "*u8", "values": "*u8"}
            constants |= row
            yield _compilation(f"rotate_and_store {name}, fp8 pages", rotate_and_store_kernel, types, constants, True)
    constants = _latent_constants(128, 192, 512, 64, True) | {"SPLITS": 8, "HAS_BIAS": False}
    types = dict.fromkeys(("q", "bias", "latents", "queries", "weight"), "*bf16") | {"kv": "*fp32"} | _TYPES
    yield _compilation("rotate_and_store_latent deepseek", rotate_and_store_latent_kernel, types, constants, True)


def _compilation(
    name: str, kernel: Any, types: dict[str, str], constants: dict[str, int | bool], also: bool
) -> Compilation:
    constants = constants | {"ALSO": also}
    name = f"{name}, second slots" if also else name
    return Compilation(name, kernel, signature_of(kernel, types, constants), constants)


_TYPES = {
    "slots": "*i64", "also_begins": "*i32", "also_slots": "*i64", "positions": "*i32", "cos": "*fp32", "sin": "*fp32",
    "epsilon": "fp32", "rows": "i32",
}  # fmt: skip
