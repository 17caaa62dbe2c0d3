"""How much memory a network needs: for its weights as an executor keeps them, and for a step by its number of rows.
Plain arithmetic over a network's description: no torch, no device, no values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

from models.spec import Attention, DeltaNet, ExpertRouter, Experts, LatentAttention, Linear, Network, Norm

FLOAT32 = 4
# Bytes of a number of a linear, and of what is read and written around it.
LINEAR_BYTES = {"bfloat16": 2, "float32": 4, "int8": 1}
NUMBER_BYTES = {"bfloat16": 2, "float32": 4, "int8": 2}


class StoredSizes(Protocol):
    """Of a folder's tensors, by their headers (FolderHeaders, Weights, HeadWeights)."""

    def coded_bytes(self, linear: Linear) -> int:
        """Of the linear's codes, scales and zeros, if all its parts are coded alike; 0: it is made dense."""
        ...

    def number_bytes(self, name: str) -> int:
        """Of one number of a tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """How an executor keeps weights."""

    # Bytes of a number outside of the layers' linears: the embedding as it is stored, and the head.
    table: float
    head: float
    # Bytes of a linear in a layer, all of its parts.
    linear: Callable[[Linear], int]


def stacks_stay(executor: str, dtype: str) -> bool:
    """Whether an executor multiplies experts in mxfp4 as they are stored."""
    return executor == "compiled" and dtype == "bfloat16"


def kept_by(network: Network, stored: StoredSizes, dtype: str, codes_stay: bool, stacks_stay: bool = False) -> Kept:
    """Of an executor that computes in `dtype`; `codes_stay`: whether it multiplies the folder's own codes, of a linear
    or (`stacks_stay`) of experts in one tensor."""
    linear_number, number = LINEAR_BYTES[dtype], NUMBER_BYTES[dtype]

    def linear(one: Linear) -> int:
        stacked = any(part.stack and not part.stack.whole for part in one.parts)
        stays = stacks_stay if stacked else codes_stay and dtype != "int8"
        coded = stored.coded_bytes(one) if stays else 0
        # int8 has a scale for each output.
        scales = FLOAT32 * one.outputs if dtype == "int8" else 0
        # Biases of experts aren't rounded.
        bias_number = FLOAT32 if stacked else number
        return (coded or numbers_of(one) * linear_number + scales) + (one.outputs * bias_number if one.bias else 0)

    return Kept(stored.number_bytes(network.embedding), number if codes_stay else linear_number, linear)


def weight_bytes(network: Network, kept: Kept) -> int:
    """Of all weights. Norms and routers are float32 in every executor; what an absorbed latent attention takes apart
    (`kv_up`) is dense."""
    size = network.rows * network.hidden_size
    total = size * kept.table
    tied = [f"{part.name}.weight" for part in network.head.parts] == [network.embedding] and kept.table == kept.head
    total += 0 if tied else network.head.outputs * network.head.inputs * kept.head
    for part in (*network.layers, network.norm, network.entry, network.context):
        for item in _parts_of(part):
            total += _bytes_of(item, kept)
    return int(total)


def _bytes_of(item: Any, kept: Kept) -> float:
    if isinstance(item, Norm):
        return item.width * FLOAT32
    if isinstance(item, ExpertRouter):
        return (item.linear.outputs * item.linear.inputs + item.experts) * FLOAT32
    if isinstance(item, Attention) and item.sinks:
        return item.heads * FLOAT32
    if isinstance(item, DeltaNet):
        return sum(map(math.prod, item.tensors.values())) * FLOAT32
    if isinstance(item, LatentAttention):
        return item.kv_up.outputs * item.kv_up.inputs * kept.head
    return kept.linear(item) if isinstance(item, Linear) else 0


def numbers_of(linear: Linear) -> int:
    return linear.outputs * linear.inputs


def _parts_of(item: Any) -> Iterator[Any]:
    """Every dataclass in it, itself first; not the linears that their owner counts."""
    if is_dataclass(item):
        yield item
        is_latent = isinstance(item, LatentAttention)
        left_out = {"linear"} if isinstance(item, ExpertRouter) else {"kv_up"} if is_latent else set()
        for field in fields(item):
            if field.name not in left_out:
                yield from _parts_of(getattr(item, field.name))
    elif isinstance(item, tuple):
        for member in item:
            yield from _parts_of(member)


# A sequence -----------------------------------------------------------------------------------------------


def state_bytes(network: Network, number_bytes: int, longest_draft: int) -> int:
    """What a sequence has beside its pages: of each delta net its state, and rows that a rejection may take back."""
    nets = [layer.attention for layer in network.layers if isinstance(layer.attention, DeltaNet)]
    return sum(
        FLOAT32 * net.value_heads * net.key_dim * net.value_dim + number_bytes * net.kept * net.rows_kept(longest_draft)
        for net in nets
    )


# A step --------------------------------------------------------------------------------------------------


def row_bytes(network: Network, number_bytes: int, taps: int = 0) -> int:
    """What one row of a step takes at most while it is computed, with its logits: the widest layer counts, because
    layers reuse what others freed. Generous: everything that a layer makes counts at once."""
    hidden = network.hidden_size
    around = hidden * (2 * FLOAT32 + 2 * number_bytes) + taps * hidden * number_bytes
    widest = max(_attention_row(x.attention, number_bytes) + _mlp_row(x.mlp, number_bytes) for x in network.layers)
    # Rank 0 has the logits of all, beside its own.
    logits = network.head.outputs + (2 * network.vocab_size if network.cut else 0)
    return around + widest + FLOAT32 * logits


def _attention_row(attention: Attention | LatentAttention | DeltaNet, number_bytes: int) -> int:
    if isinstance(attention, DeltaNet):
        # What is read of the states, and that normed.
        return number_bytes * attention.mixed.outputs + (FLOAT32 + number_bytes) * attention.output.inputs
    if isinstance(attention, Attention):
        # qkv, turned queries, what is attended.
        return number_bytes * (attention.qkv.outputs + 2 * attention.heads * attention.head_dim)
    kept = attention.latent_dim + attention.rope_dim
    wide = attention.q.outputs + attention.heads * (kept + attention.latent_dim + attention.value_dim)
    return number_bytes * (wide + attention.kv_down.outputs + (attention.q_down.outputs if attention.q_down else 0))


def _mlp_row(mlp: Any, number_bytes: int) -> int:
    if not isinstance(mlp, Experts):
        return number_bytes * (mlp.gate_up.outputs + mlp.down.inputs)
    one = mlp.experts[0]
    pair = number_bytes * (one.gate_up.outputs + one.down.inputs) + FLOAT32 * one.down.outputs
    shared = _mlp_row(mlp.shared, number_bytes) if mlp.shared else 0
    return mlp.router.top_k * pair + shared + FLOAT32 * mlp.router.experts


def fixed_bytes(network: Network, context: int, slots: int) -> int:
    """What a GPU executor keeps beside weights and pages, however many rows a step has: tables of rotations, and room
    for the partial results of attention over long contexts (`slots` splits)."""
    attentions = set(network.paged)
    ropes = {attention.rope for attention in attentions}
    partials = {(one.heads, one.head_dim if isinstance(one, Attention) else one.latent_dim) for one in attentions}
    turns = sum(rope.width * FLOAT32 * context for rope in ropes)
    return turns + sum(slots * heads * (width + 2) * FLOAT32 for heads, width in partials)
