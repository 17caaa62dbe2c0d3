"""Multi-head latent attention as ops of the CPU program: absorbed, over pages of latents.

With the key part of kv_up absorbed into the queries, all heads look at one key a token, (rotated key, latent), and
at the latent as its value. That is attention with one kv head whose dimension is rope + latent, so the pages, the
rotation and the attention are those of kernels/paged_attention/cpu_ops.py. A row of its input is

    query of head 0 | … | query of the last head | key | value         each [rope, latent]
                                                   key: rope as kv_down gives it, latent normed; value: the same

    spread   kv_down -> key and value; the rope part of each head of q -> its query
    absorb   q's nope part · kv_up's key part -> the latent part of the query, head by head
    …        rotate and store, attend, merge (the rope part of what comes out is of no use)
    expand   the latent part of what a head saw · kv_up's value part -> its output

Nothing here reads another row, and attention and linears keep a row's bits by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch

from kernels.cpu_program import ROWS, Native, Op, op, op_chunks
from kernels.cpu_vectors import (
    LANES,
    bits_of_float,
    float_in,
    load_bfloat16_part,
    load_floats_part,
    load_i32,
    multiply_add,
    spread,
    store_bfloat16_part,
    store_floats_part,
    store_i32,
    total,
    word,
    zeros,
)
from kernels.linear.cpu import Rows, linear
from kernels.linear.packing import Memory, PackedWeight, pack
from kernels.mla_attention.reference import split_up
from kernels.paged_attention.cpu_ops import HeadNorm, Places, Shape, Workspace, attention_ops
from kernels.paged_attention.cpu_products import compiled_for

# Rows of a chunk.
_ROWS = 4


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Latent attention of one layer. `dtype` is float32 or bfloat16, of activations, pages and kv_up."""

    dtype: str
    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    latent_dim: int
    page_tokens: int
    scale: float
    interleaved: bool = False
    portable: bool = False

    @property
    def attention(self) -> Shape:
        """What the attention in the middle looks like: its pages are this layer's."""
        return Shape(
            self.dtype, self.heads, 1, self.rope_dim + self.latent_dim, self.page_tokens, self.scale, self.rope_dim,
            interleaved=self.interleaved, portable=self.portable,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def row(self) -> int:
        """Numbers in a row of attention's input."""
        return (self.heads + 2) * (self.rope_dim + self.latent_dim)

    @property
    def seen(self) -> int:
        """Numbers in a row of what attention gives."""
        return self.heads * (self.rope_dim + self.latent_dim)

    def check(self) -> None:
        self.attention.check()
        if any(size % 2 for size in (self.nope_dim, self.rope_dim, self.value_dim, self.latent_dim)):
            raise ValueError("latent attention: sizes must be even")


# Norm of rows --------------------------------------------------------------------------------------------

(_X, _X_ROW, _OUT, _OUT_ROW, _WIDTH, _NORM, _EPSILON) = range(7)


@op_chunks
def row_chunks(args, step):
    return (word(step, ROWS) + _ROWS - 1) // _ROWS


# What is made once for each kind of numbers. Ops stand outside: their code is found on disk by what they refer to, and
# parts they would hold are new in every process.


def _make_norm(bfloat16: bool) -> Any:
    kind = "bfloat16" if bfloat16 else "float32"

    @compiled_for(kind, inline="always")
    def load_part(address, index, count):
        if bfloat16:
            return load_bfloat16_part(address, index, count)
        return load_floats_part(address, index, count)

    @compiled_for(kind, inline="always")
    def store_part(address, index, value, count):
        if bfloat16:
            store_bfloat16_part(address, index, value, count)
        else:
            store_floats_part(address, index, value, count)

    @compiled_for(kind, error_model="numpy")
    def norm(x, out, width, weight, epsilon):
        """out = x / sqrt(mean x² + epsilon) · weight."""
        squares = zeros()
        for i in range(0, width, LANES):
            value = load_part(x, i, width - i)
            squares = multiply_add(value, value, squares)
        factor = spread(np.float32(1.0) / np.sqrt(total(squares) / np.float32(width) + epsilon))
        for i in range(0, width, LANES):
            value = load_part(x, i, width - i) * factor * load_floats_part(weight, i, width - i)
            store_part(out, i, value, width - i)

    return norm


_norm_float32, _norm_bfloat16 = _make_norm(False), _make_norm(True)


def _make_norm_rows(norm: Any, kind: str) -> Any:
    @compiled_for(kind, inline="always")
    def norm_rows(args, step, chunk):
        for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, word(step, ROWS))):
            norm(
                word(args, _X) + row * word(args, _X_ROW), word(args, _OUT) + row * word(args, _OUT_ROW),
                word(args, _WIDTH), word(args, _NORM), float_in(word(args, _EPSILON)),
            )  # fmt: skip

    return norm_rows


_rows_float32 = _make_norm_rows(_norm_float32, "float32")
_rows_bfloat16 = _make_norm_rows(_norm_bfloat16, "bfloat16")


@op
def norm_rows_float32(args, step, chunk, thread):
    _rows_float32(args, step, chunk)


@op
def norm_rows_bfloat16(args, step, chunk, thread):
    _rows_bfloat16(args, step, chunk)


_NORM_ROWS: dict[str, Native] = {"float32": norm_rows_float32, "bfloat16": norm_rows_bfloat16}


def norm_rows_op(dtype: str, x: int, x_row: int, width: int, norm: HeadNorm, out: int, out_row: int) -> Op:
    """RMSNorm of rows in the model's type, at addresses, `x_row` and `out_row` bytes apart; in place if they agree."""
    words = (x, x_row, out, out_row, width, norm.weight, bits_of_float(norm.epsilon))
    return Op(_NORM_ROWS[dtype], row_chunks, words)


# Spread --------------------------------------------------------------------------------------------------

(_Q, _KV, _WIDE, _HEADS, _NOPE, _ROPE, _LATENT, _KV_NORM, _KV_EPSILON) = range(9)


@numba.njit(inline="always")
def _copy(source, target, words):
    for i in range(words):
        store_i32(target, i, load_i32(source, i))


def _make_spread(norm: Any, size: int, kind: str) -> Any:
    @compiled_for(kind, inline="always")
    def spread_rows(args, step, chunk):
        heads, nope = word(args, _HEADS), word(args, _NOPE) * size
        rope, latent = word(args, _ROPE) * size, word(args, _LATENT) * size
        one = rope + latent
        for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, word(step, ROWS))):
            q, wide = word(args, _Q) + row * heads * (nope + rope), word(args, _WIDE) + row * (heads + 2) * one
            for head in range(heads):
                _copy(q + head * (nope + rope) + nope, wide + head * one, rope // 4)
            down, key = word(args, _KV) + row * one, wide + heads * one
            _copy(down + latent, key, rope // 4)
            norm(down, key + rope, word(args, _LATENT), word(args, _KV_NORM), float_in(word(args, _KV_EPSILON)))
            _copy(key, key + one, one // 4)

    return spread_rows


_spread_rows_float32 = _make_spread(_norm_float32, 4, "float32")
_spread_rows_bfloat16 = _make_spread(_norm_bfloat16, 2, "bfloat16")


@op
def spread_float32(args, step, chunk, thread):
    _spread_rows_float32(args, step, chunk)


@op
def spread_bfloat16(args, step, chunk, thread):
    _spread_rows_bfloat16(args, step, chunk)


_SPREAD: dict[str, Native] = {"float32": spread_float32, "bfloat16": spread_bfloat16}


# Ops -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """kv_up, cut into what is absorbed into queries and what makes outputs; each as one linear a head."""

    key: PackedWeight  # of a head: nope -> latent
    value: PackedWeight  # of a head: latent -> value

    @classmethod
    def of(cls, shape: LatentShape, kv_up: torch.Tensor, memory: Memory | None = None) -> LatentWeights:
        """kv_up [heads·(nope + value), latent]."""
        key_up, value_up = split_up(kv_up, shape.heads, shape.nope_dim)
        return cls(
            pack(list(key_up.transpose(1, 2)), shape.dtype, memory=memory),
            pack(list(value_up), shape.dtype, memory=memory),
        )


@dataclass(frozen=True, slots=True)
class LatentPlaces:
    """Addresses: of buffers in the model's type, one row behind the other; of this layer's pages; and of the tables
    [positions, rope/2] float32."""

    q: int  # [R, heads · (nope + rope)]
    kv_down: int  # [R, latent + rope]
    wide: int  # [R, LatentShape.row]
    seen: int  # [R, LatentShape.seen]
    out: int  # [R, heads · value]
    keys: int
    values: int
    cos: int
    sin: int


def latent_attention_ops(
    shape: LatentShape, places: LatentPlaces, weights: LatentWeights, kv_norm: HeadNorm, space: Workspace
) -> list[Op]:
    """From q and kv_down to `out`. `space` is a Workspace of `shape.attention`; the caller keeps what places name."""
    shape.check()
    size, one = shape.size, (shape.rope_dim + shape.latent_dim) * shape.size
    words = (
        places.q, places.kv_down, places.wide, shape.heads, shape.nope_dim, shape.rope_dim, shape.latent_dim,
        kv_norm.weight, bits_of_float(kv_norm.epsilon),
    )  # fmt: skip
    q_head, dtype = (shape.nope_dim + shape.rope_dim) * size, getattr(torch, shape.dtype)
    absorb = linear(
        weights.key,
        Rows(places.q, shape.heads * q_head, group=q_head),
        Rows(places.wide + shape.rope_dim * size, shape.row * size, group=one),
        dtype, threads=space.threads, portable=shape.portable,
    )  # fmt: skip
    expand = linear(
        weights.value,
        Rows(places.seen + shape.rope_dim * size, shape.heads * one, group=one),
        Rows(places.out, shape.heads * shape.value_dim * size, group=shape.value_dim * size),
        dtype, threads=space.threads, portable=shape.portable,
    )  # fmt: skip
    middle = Places(places.wide, places.seen, places.keys, places.values, places.cos, places.sin)
    return [
        Op(_SPREAD[shape.dtype], row_chunks, words),
        absorb,
        *attention_ops(shape.attention, middle, space),
        expand,
    ]
