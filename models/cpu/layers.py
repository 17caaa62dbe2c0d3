"""From a network's layers to the ops of a program, in order; what the compiled loops lack is said here.

    residual -norm-> normed -attention(+)-> residual -norm-> normed -mlp(+)-> residual

with a norm at an end:  normed -attention-> given -norm(+)-> residual

Of a prompt's rows the last layer needs little more than keys and values: behind its attention only the rows go on whose
logits are wanted.
"""

from __future__ import annotations

import torch

from kernels.cpu_program import LOGITS_COUNT, Op
from kernels.linear.cpu import STORE
from kernels.mla_attention.cpu import LatentShape
from kernels.norm_rope_act.cpu_rows import embed
from kernels.paged_attention.cpu_ops import Shape
from models.cpu import delta_net, dense, entry, experts, latent_attention
from models.cpu.builder import Input, ModelBuilder, Step, activation_dtype
from models.executor import Options
from models.spec import Attention, Beside, DeltaNet, Experts, LatentAttention, Layer, Mlp, Network
from models.taps import FINAL
from models.weights import embedding_of

_NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def build(builder: ModelBuilder) -> list[Step]:
    """Once for a builder."""
    network = builder.network
    table = embedding_of(network, builder.weights)
    # A copy: a table in its mapped file would keep all of that. bfloat16 stays so, also under a float32 model.
    kept = torch.bfloat16 if table.dtype == torch.bfloat16 else torch.float32
    table = table.to(kept, copy=True).contiguous()
    at = network.cut.first if network.cut else 0
    first = embed(table, builder.residual.address, at, network.embedding_scale)
    ops: list[Step] = [first, *([] if network.cut is None else [builder.residual]), *entry.entry(builder)]
    for index, layer in enumerate(network.layers):
        only_wanted = _only_wanted(builder, index)
        if index == 0 and isinstance(network.entry, Beside):
            ops += entry.second_half(builder, layer.attention_norm)
            attended = _attention(builder, layer, builder.pair, only_wanted)
            ops += builder.summed(attended, layer.attention_end_norm)
        else:
            ops.append(builder.norm(layer.attention_norm))
            attended = _attention(builder, layer, builder.normed, only_wanted)
            ops += builder.summed(attended, layer.attention_end_norm)
        ops += [builder.norm(layer.mlp_norm), *builder.summed(_mlp(builder, layer), layer.mlp_end_norm)]
        ops += builder.taps(index)
    ops += builder.taps(FINAL)
    if network.head.parts:
        head = builder.pack(network.head)
        ops.append(builder.norm(network.norm, wanted_only=True))
        ops.append(builder.linear(head, builder.normed, builder.logits.rows, torch.float32, STORE, LOGITS_COUNT))
    # What no op holds by itself lives as long as the first one.
    ops[0] = Op(first.run, first.chunks, first.words, (*first.keeps, builder))
    return ops


def _only_wanted(builder: ModelBuilder, index: int) -> bool:
    """Whether nobody reads other rows behind this layer's attention."""
    network, options = builder.network, builder.options
    if index < len(network.layers) - 1 or not network.head.parts or network.context is not None:
        return False
    layer = network.layers[index]
    known = isinstance(layer.attention, Attention) and not layer.attention.gated and isinstance(layer.mlp, Mlp)
    return known and options.group is None and not {index, FINAL} & {*options.taps}


def _attention(builder: ModelBuilder, layer: Layer, x: Input | None, only_wanted: bool) -> list[Op]:
    attention, end = layer.attention, layer.attention_end_norm
    if isinstance(attention, DeltaNet):
        assert x is builder.normed
        return delta_net.delta_net(builder, attention, end)
    shape = shape_of(attention, builder.options)
    if isinstance(attention, LatentAttention):
        assert isinstance(shape, LatentShape) and x is builder.normed
        return latent_attention.latent_attention(builder, attention, shape, end)
    assert isinstance(shape, Shape) and x is not None
    return dense.attention(builder, attention, shape, x, end, only_wanted)


def _mlp(builder: ModelBuilder, layer: Layer) -> list[Op]:
    if isinstance(layer.mlp, Experts):
        return experts.experts(builder, layer.mlp)
    return dense.mlp(builder, layer.mlp, layer.mlp_end_norm)


def shape_of(attention: Attention | LatentAttention, options: Options) -> Shape | LatentShape:
    dtype = _NAMES[activation_dtype(options.dtype, options.instructions)]
    if isinstance(attention, LatentAttention):
        return latent_attention.shape_of(attention, dtype, options.page_tokens, options.instructions)
    return dense.shape_of(attention, dtype, options.page_tokens, options.instructions)


def page_shape(attention: Attention | LatentAttention, options: Options) -> Shape:
    """How keys and values lie in pages."""
    shape = shape_of(attention, options)
    return shape.attention if isinstance(shape, LatentShape) else shape


def page_bytes(network: Network, options: Options) -> int:
    """Bytes that one page takes in all layers."""
    return sum(4 * sum(page_shape(one, options).page_words) for one in network.paged)


def why_not(network: Network, dtype: str) -> str:
    """"": the loops run this network."""
    return next(filter(None, (_lacking(layer, dtype) for layer in network.layers)), "")


def _lacking(layer: Layer, dtype: str) -> str:
    if not isinstance(layer.attention, DeltaNet):
        try:
            # How long pages are is no matter of networks.
            shape_of(layer.attention, Options(dtype, pages=0, page_tokens=16, max_context=0)).check()
        except ValueError as error:
            return str(error)
    if isinstance(layer.mlp, Experts):
        return experts.why_not(layer.mlp, layer.mlp_end_norm)
    return ""
