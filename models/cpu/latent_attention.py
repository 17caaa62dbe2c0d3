"""Latent attention's ops: the linears around kernels/mla_attention/cpu.py, and the rows between them.

    normed -q_down-> low -norm-> low -q-> q          (or normed -q-> q)
    normed -kv_down-> kv;   q, kv -spread, absorb, attention, expand-> attended -output(+)-> residual
"""

from __future__ import annotations

import torch

from kernels.cpu_instructions import ALL, Instructions
from kernels.cpu_program import Op
from kernels.linear.cpu import STORE
from kernels.mla_attention.cpu import LatentPlaces, LatentShape, LatentWeights, latent_attention_ops, norm_rows_op
from models.cpu.builder import ModelBuilder
from models.spec import LatentAttention, Norm


def shape_of(attention: LatentAttention, dtype: str, page_tokens: int, use: Instructions = ALL) -> LatentShape:
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
        use=use,
    )


def latent_attention(
    builder: ModelBuilder, attention: LatentAttention, shape: LatentShape, end: Norm | None
) -> list[Op]:
    """From the normed rows to the residual."""
    keys, values = (builder.make_pages(words) for words in shape.attention.page_words)
    cos, sin = builder.rope_tables(attention.rope)
    q, kv = builder.shared("q", attention.q.outputs), builder.shared("kv", attention.kv_down.outputs)
    attended = builder.attended
    places = LatentPlaces(
        q.address, kv.address, builder.shared("wide", shape.row).address, builder.shared("seen", shape.seen).address,
        attended[0].address, *(each.data_ptr() for each in (keys, values, cos, sin)),
    )  # fmt: skip
    kv_up = builder.weights.linear(attention.kv_up).dense(torch.float32)
    weights = LatentWeights.of(shape, kv_up, builder.memory)
    middle = latent_attention_ops(
        shape, places, weights, builder.head_norm(attention.kv_norm), builder.workspace(shape.attention)
    )
    dtype = builder.dtype
    return [
        *_queries(builder, attention, shape.dtype),
        builder.linear(builder.pack(attention.kv_down), builder.normed, kv.rows, dtype, STORE),
        *middle,
        *builder.quantize(attended, attention.output.inputs),
        builder.add(builder.pack(attention.output), attended, end),
    ]


def _queries(builder: ModelBuilder, attention: LatentAttention, dtype: str) -> list[Op]:
    q = builder.shared("q", attention.q.outputs).rows
    if attention.q_down is None or attention.q_norm is None:
        return [builder.linear(builder.pack(attention.q), builder.normed, q, builder.dtype, STORE)]
    rank = attention.q_down.outputs
    low = builder.shared_input("low", rank)
    rows = low[0].rows
    norm = builder.head_norm(attention.q_norm)
    return [
        builder.linear(builder.pack(attention.q_down), builder.normed, rows, builder.dtype, STORE),
        norm_rows_op(dtype, rows.address, rows.stride, rank, norm, rows.address, rows.stride),
        *builder.quantize(low, rank),
        builder.linear(builder.pack(attention.q), low, q, builder.dtype, STORE),
    ]
