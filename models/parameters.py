"""How many numbers a network's tensors hold: read off its description, whatever runs it."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

from models.spec import Attention, DeltaNet, ExpertRouter, Linear, Network, Norm


def parameter_count(network: Network) -> int:
    """Each tensor once: a head tied to the embedding is the embedding."""
    sizes = {network.embedding: network.vocab_size * network.hidden_size}
    _add(network, sizes)
    return sum(sizes.values())


def _add(item: Any, sizes: dict[str, int]) -> None:
    if isinstance(item, Linear):
        for part in item.parts:
            sizes[f"{part.name}.weight"] = part.outputs * item.inputs
            if item.bias:
                sizes[f"{part.name}.bias"] = part.outputs
    elif isinstance(item, Norm):
        sizes[f"{item.name}.weight"] = item.width
    if isinstance(item, Attention) and item.sinks:
        sizes[item.sinks] = item.heads
    if isinstance(item, DeltaNet):
        sizes |= {name: math.prod(shape) for name, shape in item.tensors.items()}
    if isinstance(item, ExpertRouter) and item.bias:
        sizes[item.bias] = item.experts
    if is_dataclass(item):
        for field in fields(item):
            _add(getattr(item, field.name), sizes)
    elif isinstance(item, tuple):
        for member in item:
            _add(member, sizes)
