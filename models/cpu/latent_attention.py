"""Latent attention's ops: the linears around kernels/mla_attention/cpu.py, and the rows between them.

    normed -q_down-> low -norm-> low -q-> q          (or normed -q-> q)
    normed -kv_down-> kv;   q, kv -spread, absorb, attention, expand-> attended -output(+)-> residual

A friend of the `Builder` of models/cpu/layers.py, whose weights, buffers and linears it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.cpu_program import Op
from kernels.linear.cpu import ADD, STORE
from kernels.mla_attention.cpu import LatentPlaces, LatentShape, LatentWeights, latent_attention_ops, norm_rows_op
from models.spec import LatentAttention

if TYPE_CHECKING:
    from models.cpu.layers import Builder


def shape_of(attention: LatentAttention, dtype: str, page_tokens: int) -> LatentShape:
    """`dtype` is that of activations."""
    return LatentShape(
        dtype=dtype,
        heads=attention.heads,
        nope_dim=attention.nope_dim,
        rope_dim=attention.rope_dim,
        value_dim=attention.value_dim,
        latent_dim=attention.latent_dim,
        page_tokens=page_tokens,
        scale=attention.scale,
        interleaved=attention.rope.interleaved,
    )


def why_not(attention: LatentAttention) -> str:
    """Why the compiled loops lack it, or ""."""
    try:
        shape_of(attention, "bfloat16", 16).check()
    except ValueError as error:
        return str(error)
    return ""


def latent_attention(builder: Builder, attention: LatentAttention, shape: LatentShape) -> list[Op]:
    """From the normed rows to the residual."""
    keys, values = (builder._make_pages(words) for words in shape.attention.page_words)
    cos, sin = builder._tables(attention.rope)
    q, kv = builder._shared("q", attention.q.outputs), builder._shared("kv", attention.kv_down.outputs)
    attended = builder._attended
    places = LatentPlaces(
        q.address, kv.address, builder._shared("wide", shape.row).address, builder._shared("seen", shape.seen).address,
        attended[0].address, *(each.data_ptr() for each in (keys, values, cos, sin)),
    )  # fmt: skip
    kv_up = builder._weights.linear(attention.kv_up).dense(torch.float32)
    weights = LatentWeights.of(shape, kv_up, builder._memory)
    middle = latent_attention_ops(
        shape, places, weights, builder._head_norm(attention.kv_norm), builder._workspace(shape.attention)
    )
    dtype = builder._dtype
    return [
        *_queries(builder, attention, shape.dtype),
        builder._linear(builder._pack(attention.kv_down), builder._normed, kv.rows, dtype, STORE),
        *middle,
        *builder._quantize(attended, attention.output.inputs),
        builder._linear(builder._pack(attention.output), attended, builder._residual.rows, torch.float32, ADD),
    ]


def _queries(builder: Builder, attention: LatentAttention, dtype: str) -> list[Op]:
    q = builder._shared("q", attention.q.outputs).rows
    if attention.q_down is None or attention.q_norm is None:
        return [builder._linear(builder._pack(attention.q), builder._normed, q, builder._dtype, STORE)]
    rank = attention.q_down.outputs
    low = builder._shared_input("low", rank)
    rows = low[0].rows
    norm = builder._head_norm(attention.q_norm)
    return [
        builder._linear(builder._pack(attention.q_down), builder._normed, rows, builder._dtype, STORE),
        norm_rows_op(dtype, rows.address, rows.stride, rank, norm, rows.address, rows.stride),
        *builder._quantize(low, rank),
        builder._linear(builder._pack(attention.q), low, q, builder._dtype, STORE),
    ]
