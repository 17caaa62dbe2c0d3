"""The weights of a head: its own, and what it shares with the target model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from models import spec
from models.quantized.stored import StoredLinear
from models.weights import Weights


class HeadWeights:
    """The weights of a head; what is shared comes from the target's folder. The part of Weights that executors use."""

    def __init__(self, own: Weights, target: Weights, shared: Mapping[str, str]) -> None:
        self._own, self._target, self._shared = own, target, shared

    def __contains__(self, name: str) -> bool:
        return name in self._own or (name in self._shared and self._shared[name] in self._target)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        if name in self._shared:
            return self._target.take(self._shared[name], *shape)
        return self._own.take(name, *shape)

    def linear(self, linear: spec.Linear) -> StoredLinear:
        names = [f"{part.name}.weight" for part in linear.parts]
        if not any(name in self._shared for name in names):
            return self._own.linear(linear)
        (part,), (name,) = linear.parts, names
        own = spec.Part(self._shared[name].removesuffix(".weight"), part.outputs)
        return self._target.linear(spec.Linear((own,), linear.inputs, linear.bias))
