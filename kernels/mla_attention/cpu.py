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

import numba
import torch

from kernels.cpu_instructions import ALL, Instructions
from kernels.cpu_program import ROWS, Op, op, op_chunks
from kernels.cpu_vectors import bits_of_float, float_in, load_i32, store_i32, word
from kernels.linear.cpu import Rows, linear
from kernels.linear.packing import PackedMemory, PackedWeight, pack
from kernels.mla_attention.reference import split_up
from kernels.norm_rope_act.cpu_rows import rms_norm
from kernels.paged_attention.cpu_ops import HeadNorm, Places, Shape, Workspace, attention_ops

# Rows of a chunk.
_ROWS = 4


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Latent attention of one layer. `dtype` is float32, or bfloat16 where the CPU has its products, of activations,
    pages and kv_up."""

    dtype: str
    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    latent_dim: int
    page_tokens: int
    scale: float
    interleaved: bool = False
    use: Instructions = ALL

    @property
    def attention(self) -> Shape:
        """What the attention in the middle looks like: its pages are this layer's."""
        return Shape(
            self.dtype, self.heads, 1, self.rope_dim + self.latent_dim, self.page_tokens, self.scale, self.rope_dim,
            interleaved=self.interleaved, use=self.use,
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

(_SIZE, _X, _X_ROW, _OUT, _OUT_ROW, _WIDTH, _NORM, _EPSILON) = range(8)


@op_chunks
def row_chunks(args, step):
    return (word(step, ROWS) + _ROWS - 1) // _ROWS


@op
def norm_rows(args, step, chunk, thread):
    bfloat16 = word(args, _SIZE) == 2
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, word(step, ROWS))):
        x, out = word(args, _X) + row * word(args, _X_ROW), word(args, _OUT) + row * word(args, _OUT_ROW)
        rms_norm(x, bfloat16, word(args, _NORM), float_in(word(args, _EPSILON)), word(args, _WIDTH), out, bfloat16)


def norm_rows_op(dtype: str, x: int, x_row: int, width: int, norm: HeadNorm, out: int, out_row: int) -> Op:
    """RMSNorm of rows in the model's type, at addresses, `x_row` and `out_row` bytes apart; in place if they agree."""
    size = 2 if dtype == "bfloat16" else 4
    return Op(norm_rows, row_chunks, (size, x, x_row, out, out_row, width, norm.weight, bits_of_float(norm.epsilon)))


# Spread --------------------------------------------------------------------------------------------------

# Its first word is that of the norm above, _SIZE.
(_Q, _KV, _WIDE, _HEADS, _NOPE, _ROPE, _LATENT, _KV_NORM, _KV_EPSILON) = range(1, 10)


@numba.njit(inline="always")
def _copy(source, target, words):
    for i in range(words):
        store_i32(target, i, load_i32(source, i))


@op
def spread(args, step, chunk, thread):
    size, heads = word(args, _SIZE), word(args, _HEADS)
    nope, rope, latent = word(args, _NOPE) * size, word(args, _ROPE) * size, word(args, _LATENT) * size
    one = rope + latent
    for row in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, word(step, ROWS))):
        q, wide = word(args, _Q) + row * heads * (nope + rope), word(args, _WIDE) + row * (heads + 2) * one
        for head in range(heads):
            _copy(q + head * (nope + rope) + nope, wide + head * one, rope // 4)
        down, key = word(args, _KV) + row * one, wide + heads * one
        _copy(down + latent, key, rope // 4)
        rms_norm(
            down, size == 2, word(args, _KV_NORM), float_in(word(args, _KV_EPSILON)), word(args, _LATENT),
            key + rope, size == 2,
        )  # fmt: skip
        _copy(key, key + one, one // 4)


# Ops -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """kv_up, cut into what is absorbed into queries and what makes outputs; each as one linear a head."""

    key: PackedWeight  # of a head: nope -> latent
    value: PackedWeight  # of a head: latent -> value

    @classmethod
    def of(cls, shape: LatentShape, kv_up: torch.Tensor, memory: PackedMemory | None = None) -> LatentWeights:
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
        size, places.q, places.kv_down, places.wide, shape.heads, shape.nope_dim, shape.rope_dim, shape.latent_dim,
        kv_norm.weight, bits_of_float(kv_norm.epsilon),
    )  # fmt: skip
    q_head, dtype = (shape.nope_dim + shape.rope_dim) * size, getattr(torch, shape.dtype)
    absorb = linear(
        weights.key,
        Rows(places.q, shape.heads * q_head, group=q_head),
        Rows(places.wide + shape.rope_dim * size, shape.row * size, group=one),
        dtype, threads=space.threads, use=shape.use,
    )  # fmt: skip
    expand = linear(
        weights.value,
        Rows(places.seen + shape.rope_dim * size, shape.heads * one, group=one),
        Rows(places.out, shape.heads * shape.value_dim * size, group=shape.value_dim * size),
        dtype, threads=space.threads, use=shape.use,
    )  # fmt: skip
    middle = Places(places.wide, places.seen, places.keys, places.values, places.cos, places.sin)
    return [
        Op(spread, row_chunks, words),
        absorb,
        *attention_ops(shape.attention, middle, space),
        expand,
    ]
