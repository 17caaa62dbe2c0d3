"""The per-row operations in Triton: one program a row (or a piece of one), float32 inside, rounded once when written.

A row is reduced in one block of a fixed size, so its bits depend on the row alone. Rotation of q and k, and their
norms, happen where keys are stored (kernels/kv_store). Knows nothing of layers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.ahead_of_time import Compilation, signature_of
from kernels.dependent import start_next_early, wait_for_kernel_before
from kernels.gemm.ranges import Product, product_of, read_product
from kernels.launch import ceil_div, launch, power_of_two

# Elements of a piece of a row where nothing is reduced.
PIECE = 1024


@triton.jit(do_not_specialize=["rows"])
def add_norm_kernel(
    residual, delta, bias, weight, out, rows, epsilon,
    width: tl.constexpr, HAS_DELTA: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """residual += delta; out = RMSNorm(residual)."""
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(residual + row * width + at, mask=inside, other=0.0)
    if HAS_DELTA:
        x += read_product(delta, bias, row, rows, at, inside, width, SPLITS, HAS_BIAS, out.dtype.element_ty)
        tl.store(residual + row * width + at, x, mask=inside)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + epsilon)
    normed = x * scale * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row * width + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def norm_wanted_kernel(
    residual, delta, bias, wanted, weight, out, rows, epsilon,
    width: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[i] = RMSNorm(residual[wanted[i]] + delta[wanted[i]]); the residual stays as it is."""
    start_next_early()
    wait_for_kernel_before()
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(wanted + place).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(residual + row * width + at, mask=inside, other=0.0)
    x += read_product(delta, bias, row, rows, at, inside, width, SPLITS, HAS_BIAS, out.dtype.element_ty)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + epsilon)
    normed = x * scale * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + place * width + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def tap_kernel(
    residual, delta, bias, places, weight, out, rows, epsilon,
    stride: tl.constexpr, width: tl.constexpr, NORMED: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out[places[row]] = residual[row] + delta[row], or its RMSNorm; the residual is not changed."""
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(residual + row * width + at, mask=inside, other=0.0)
    x += read_product(delta, bias, row, rows, at, inside, width, SPLITS, HAS_BIAS, out.dtype.element_ty)
    if NORMED:
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + epsilon)
        x = x * scale * tl.load(weight + at, mask=inside, other=0.0)
    place = tl.load(places + row).to(tl.int64)
    tl.store(out + place * stride + at, x.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def norm_kernel(
    x_in, bias, weight, out, rows, epsilon,
    width: tl.constexpr, stride: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = RMSNorm(x) of rows that are `stride` apart."""
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = read_product(x_in, bias, row, rows, at, inside, stride, SPLITS, HAS_BIAS, out.dtype.element_ty)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + epsilon)
    normed = x * scale * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row * width + at, normed.to(out.dtype.element_ty), mask=inside)


ACTIVATIONS = ("silu", "gelu_tanh", "clamped_swiglu")


@triton.jit
def activated(gate, up, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr):
    """f(gate) · up; f(gate) = gate · sigmoid of gate, or of GELU's polynomial. Clamped: (up + 1) · gate ·
    sigmoid(1.702 · gate)."""
    by = gate
    if ACTIVATION == 1:
        # 2·√(2/π).
        by = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    if ACTIVATION == 2:
        # What is no number stays.
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up)) + 1.0
        by = 1.702 * gate
    return gate / (1.0 + tl.exp(-by)) * up


@triton.jit
def gated_kernel(
    gate_up, out, width: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr
):
    """out = f(gate) · up, of rows that hold gates, then ups."""
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    gated = activated(gate, up, ACTIVATION, LIMIT)
    tl.store(out + row * width + at, gated.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sigmoid_gated_kernel(x_in, gate, out, width: tl.constexpr, stride: tl.constexpr, ONE: tl.constexpr,
                         BLOCK: tl.constexpr):  # fmt: skip
    """out = x · sigmoid(gate), of gates that are `stride` apart; ONE: a row has one gate."""
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(x_in + row * width + at, mask=inside, other=0.0).to(tl.float32)
    by = tl.load(gate + row * stride + at * (0 if ONE else 1), mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (x / (1.0 + tl.exp(-by))).to(out.dtype.element_ty), mask=inside)


@triton.jit
def embed_kernel(tokens, table, out, width: tl.constexpr, BLOCK: tl.constexpr):
    start_next_early()
    wait_for_kernel_before()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    start = tl.load(tokens + row).to(tl.int64) * width
    tl.store(out + row * width + at, tl.load(table + start + at, mask=inside).to(tl.float32), mask=inside)


@triton.jit
def feed_kernel(tokens, given, VOCABULARY: tl.constexpr):
    start_next_early()
    wait_for_kernel_before()
    at = tokens + tl.program_id(0)
    token = tl.load(given + tl.load(at))
    tl.store(at, tl.where((token >= 0) & (token < VOCABULARY), token, 0))


def add_norm(
    residual: torch.Tensor,  # [R, H] float32, changed here
    delta: Product | None,  # [R, H]; ranges: of a product of `dtype`
    weight: torch.Tensor,  # [H] float32
    epsilon: float,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """residual + delta, in its place, and its RMSNorm in `dtype`."""
    rows, width = residual.shape
    out = torch.empty(rows, width, dtype=dtype, device=residual.device)
    given, bias, read = product_of(residual if delta is None else delta, dtype)
    launch(
        add_norm_kernel, (rows,), residual, given, bias, weight, out, rows, epsilon,
        width=width, HAS_DELTA=delta is not None, **read, **_whole_row(width),
    )  # fmt: skip
    return residual, out


def norm_wanted(
    residual: torch.Tensor,  # [R, H] float32
    delta: Product,  # [R, H]
    wanted: torch.Tensor,  # [W] int32
    weight: torch.Tensor,  # [H] float32
    epsilon: float,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:  # [W, H]
    """RMSNorm of residual + delta, of the rows whose logits are wanted; written to `out` if it is given."""
    count, (rows, width) = len(wanted), residual.shape
    if out is None:
        out = torch.empty(count, width, dtype=dtype, device=residual.device)
    assert out.shape == (count, width) and out.dtype == dtype and out.is_contiguous()
    given, bias, read = product_of(delta, dtype)
    if count:
        launch(
            norm_wanted_kernel, (count,), residual, given, bias, wanted, weight, out, rows, epsilon,
            width=width, **read, **_whole_row(width),
        )  # fmt: skip
    return out


def tap(
    residual: torch.Tensor,  # [R, H] float32
    delta: Product,  # [R, H]
    places: torch.Tensor,  # [R] int32: where each row goes
    out: torch.Tensor,  # [R, H], rows may be further apart than they are wide; written here
    weight: torch.Tensor | None = None,  # [H] float32
    epsilon: float = 0.0,
) -> None:
    """residual + delta of every row, or its RMSNorm where there is a weight, in out's dtype."""
    rows, width = residual.shape
    assert out.stride(1) == 1 and len(places) == rows
    given, bias, read = product_of(delta, out.dtype)
    launch(
        tap_kernel, (rows,), residual, given, bias, places, residual if weight is None else weight, out, rows, epsilon,
        stride=out.stride(0), width=width, NORMED=weight is not None, **read, **_whole_row(width),
    )  # fmt: skip


def norm(x: Product, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """RMSNorm of [R, width], whose rows may be further apart than they are wide; the same dtype."""
    given, bias, read = product_of(x, x.dtype)
    rows, width = given.shape[-2:]
    assert given.stride(-1) == 1
    out = torch.empty(rows, width, dtype=x.dtype, device=given.device)
    launch(
        norm_kernel, (rows,), given, bias, weight, out, rows, epsilon,
        width=width, stride=given.stride(-2), **read, **_whole_row(width),
    )  # fmt: skip
    return out


def gated(gate_up: torch.Tensor, activation: str = "silu", limit: float = 0.0) -> torch.Tensor:
    """As the reference: [R, 2·I] -> [R, I], the same dtype."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(PIECE, power_of_two(width))
    launch(
        gated_kernel, (rows, ceil_div(width, block)), gate_up, out,
        width=width, ACTIVATION=ACTIVATIONS.index(activation), LIMIT=float(limit), BLOCK=block,
    )  # fmt: skip
    return out


def sigmoid_gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """As the reference: [R, width] and [R, width], or a gate a row [R, 1] -> [R, width], x's dtype."""
    rows, width = x.shape
    assert x.is_contiguous() and gate.shape in ((rows, width), (rows, 1)) and gate.stride(1) == 1
    out = torch.empty_like(x)
    block = min(PIECE, power_of_two(width))
    launch(
        sigmoid_gated_kernel, (rows, ceil_div(width, block)), x, gate, out, width=width, stride=gate.stride(0),
        ONE=gate.shape[1] < width, BLOCK=block,
    )  # fmt: skip
    return out


def embed(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of the table as float32: [R] of ids, [V, H] -> [R, H]."""
    rows, width = len(tokens), table.shape[1]
    out = torch.empty(rows, width, dtype=torch.float32, device=table.device)
    block = min(PIECE, power_of_two(width))
    launch(embed_kernel, (rows, ceil_div(width, block)), tokens, table, out, width=width, BLOCK=block)
    return out


def feed(tokens: torch.Tensor, given: torch.Tensor, vocabulary: int) -> None:
    """Replace each of `tokens` [R] int32, a place in `given`, by the id there, or by 0 if that is no id."""
    launch(feed_kernel, (len(tokens),), tokens, given, VOCABULARY=vocabulary)


def _whole_row(width: int) -> dict[str, int]:
    """A row in one block. From the width alone: the order of a sum must not depend on the number of rows."""
    block = power_of_two(width)
    return {"BLOCK": block, "warps": min(max(block // 512, 1), 16)}


def compilations(arch: int) -> Iterator[Compilation]:
    types = {"residual": "*fp32", "weight": "*fp32", "epsilon": "fp32"}
    types |= {"bias": "*fp32", "rows": "i32"}
    types |= dict.fromkeys(("tokens", "given", "wanted", "places"), "*i32")
    as_it_is, in_ranges = {"SPLITS": 0, "HAS_BIAS": False}, {"SPLITS": 4, "HAS_BIAS": True}
    for kind, width in (("bf16", 4096), ("fp32", 576)):
        pointers = types | dict.fromkeys(("delta", "x_in", "gate_up", "gate", "table", "out"), f"*{kind}")
        row = {"width": width, **_whole_row(width)}
        warps = row.pop("warps")
        piece = {"width": width, "BLOCK": PIECE}
        for kernel, constants, count in (
            (add_norm_kernel, row | as_it_is | {"HAS_DELTA": True}, warps),
            (add_norm_kernel, row | in_ranges | {"HAS_DELTA": True}, warps),
            (norm_wanted_kernel, row | in_ranges, warps),
            (tap_kernel, row | as_it_is | {"stride": 3 * width, "NORMED": True}, warps),
            (norm_kernel, row | as_it_is | {"stride": width}, warps),
            (gated_kernel, piece | {"ACTIVATION": 0, "LIMIT": 0.0}, 4),
            (gated_kernel, piece | {"ACTIVATION": 1, "LIMIT": 0.0}, 4),
            (gated_kernel, piece | {"ACTIVATION": 2, "LIMIT": 7.0}, 4),
            (sigmoid_gated_kernel, piece | {"stride": 3 * width, "ONE": False}, 4),
            (embed_kernel, piece, 4),
            (feed_kernel, {"VOCABULARY": 128256}, 4),
        ):
            if kernel is embed_kernel:
                pointers["out"] = "*fp32"
            own = {"delta": "*fp32"} if constants.get("SPLITS") else {}
            signature = signature_of(kernel, pointers | own, constants)
            which = f", {ACTIVATIONS[constants['ACTIVATION']]}" if "ACTIVATION" in constants else ""
            which = ", of ranges" if own else which
            yield Compilation(f"{kernel.__name__} {kind}{which}", kernel, signature, constants, count)
