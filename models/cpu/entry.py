"""The ops by which rows enter a drafter's network: from embeddings and the hidden values that the rows come with.

    Fused:    residual(embedding) -> pair, residual(hidden) -> pair, pair -linear-> residual
    Beside:   residual(embedding) -norm-> pair, hidden -> residual; the first layer's attention reads pair
    Given:    hidden -> residual
"""

from __future__ import annotations

import torch

from kernels.cpu_program import Op
from kernels.linear.cpu import STORE
from kernels.norm_rope_act.cpu_rows import take
from models.cpu.builder import ModelBuilder
from models.spec import Fused, Given, Norm


def entry(builder: ModelBuilder) -> list[Op]:
    """The embeddings are in the residual."""
    one, width = builder.network.entry, builder.network.hidden_size
    if one is None:
        return []
    assert builder.hidden is not None and builder.pair is not None
    given = take(builder.hidden.address, builder.residual.address, width)
    if isinstance(one, Given):
        return [given]
    first = builder.half(one.embedding_norm, second=isinstance(one, Fused) and one.hidden_first)
    if not isinstance(one, Fused):
        return [first, given, *([builder.norm_residual(one.hidden_norm)] if one.hidden_norm else [])]
    return [
        first,
        given,
        builder.half(one.hidden_norm, second=not one.hidden_first),
        *builder.quantize(builder.pair, 2 * width),
        builder.linear(builder.pack(one.linear), builder.pair, builder.residual.rows, torch.float32, STORE),
    ]


def second_half(builder: ModelBuilder, one: Norm | None) -> list[Op]:
    """What the first layer's attention reads behind a `Beside`: the residual, normed, joins the embedding in `pair`."""
    assert builder.pair is not None
    return [builder.half(one, second=True), *builder.quantize(builder.pair, 2 * builder.network.hidden_size)]
