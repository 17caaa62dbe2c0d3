"""The ops of attention over heads and of an MLP.

    normed -qkv-> qkv -rotate, store, attend, merge-> attended -output(+)-> residual
    normed -gate·up-> gated -down(+)-> residual

or, where the layer norms what they give (`end`), to a buffer of their own in place of the residual.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.cpu_instructions import ALL, Instructions
from kernels.cpu_program import Op
from kernels.linear.cpu import GATE, STORE, Rows
from kernels.norm_rope_act.cpu_rows import add_gated, gate
from kernels.paged_attention.cpu_ops import Places, Shape, attention_ops
from models.cpu.builder import Input, ModelBuilder
from models.spec import Attention, Linear, Mlp, Norm


def shape_of(attention: Attention, dtype: str, page_tokens: int, use: Instructions = ALL) -> Shape:
    """`dtype` is that of activations."""
    return Shape(
        dtype=dtype,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        page_tokens=page_tokens,
        scale=attention.scale,
        rope_width=attention.rope.width,
        interleaved=attention.rope.interleaved,
        window=attention.window,
        use=use,
    )


def attention(
    builder: ModelBuilder, one: Attention, shape: Shape, x: Input, end: Norm | None, only_wanted: bool = False
) -> list[Op]:
    """From the normed rows `x` to the residual; with `only_wanted` to that of the wanted rows alone."""
    gates: list[Op] = []
    if one.gated:
        *parts, gating = one.qkv.parts
        gates = _gates(builder, replace(one.qkv, parts=(gating,)), x)
        one = replace(one, qkv=replace(one.qkv, parts=tuple(parts)))
    keys, values = (builder.make_pages(words) for words in shape.page_words)
    cos, sin = builder.rope_tables(one.rope)
    qkv = Rows(builder.qkv.address, one.qkv.outputs * builder.dtype.itemsize)
    out = builder.attended[0].address
    places = Places(
        qkv.address, out, *(each.data_ptr() for each in (keys, values, cos, sin)), sinks=builder.sinks(one)
    )
    norms = builder.head_norm(one.q_norm), builder.head_norm(one.k_norm)
    rotate, *attend = attention_ops(shape, places, builder.workspace(shape), *norms)
    stored = [builder.linear(builder.pack(one.qkv), x, qkv, builder.dtype, STORE), rotate]
    builder.stores += stored
    return [
        *stored,
        *attend,
        *gates,
        *(builder.only_wanted(one.output.inputs) if only_wanted else ()),
        *builder.quantize(builder.attended, one.output.inputs),
        builder.add(builder.pack(one.output), builder.attended, end),
    ]


def _gates(builder: ModelBuilder, one: Linear, x: Input) -> list[Op]:
    """What is attended, times the sigmoid of a linear of the same rows."""
    gates, attended = builder.shared("gates", one.outputs), builder.attended[0]
    rows = Rows(attended.address, one.outputs * attended.dtype.itemsize)
    return [
        builder.linear(builder.pack(one), x, gates.rows, builder.dtype, STORE),
        gate(rows, gates.address, one.outputs, builder.dtype),
    ]


def mlp(builder: ModelBuilder, one: Mlp, end: Norm | None = None, share: Linear | None = None) -> list[Op]:
    """From the normed rows to the residual. `share`: a linear of one output, whose sigmoid it is multiplied with."""
    gated = Rows(builder.gated[0].address, one.down.inputs * builder.dtype.itemsize)
    gate_up = builder.pack(one.gate_up, gated=True)
    return [
        builder.linear(gate_up, builder.normed, gated, builder.dtype, GATE, activation=one.activation, limit=one.limit),
        *builder.quantize(builder.gated, one.down.inputs),
        *([builder.add(builder.pack(one.down), builder.gated, end)] if share is None else _shared(builder, one, share)),
    ]


def _shared(builder: ModelBuilder, one: Mlp, share: Linear) -> list[Op]:
    given, residual = builder.given, builder.residual
    gates = builder.shared("share", 1, torch.float32)
    return [
        builder.linear(builder.pack(one.down), builder.gated, given.rows, torch.float32, STORE),
        builder.linear(builder.pack(share), builder.normed, gates.rows, torch.float32, STORE),
        add_gated(given.address, gates.address, residual.address, residual.width),
    ]
