"""The weights of a head: its own, and what it shares with the target model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from models import spec
from models.heads.head import Head
from models.heads.residual import ResidualHeads
from models.quantized.stored import StoredLinear
from models.weights import Weights


class HeadWeights:
    """The weights of a head; what is shared comes from the target's folder. The part of Weights that executors use."""

    def __init__(
        self, own: Weights, target: Weights, shared: Mapping[str, str], ids: torch.Tensor | None, vocab_size: int
    ) -> None:
        """`ids` are the target's ids of the head's vocabulary; None: it has the target's, of `vocab_size` tokens."""
        self._own, self._target, self._shared = own, target, shared
        self._ids, self._vocab_size = ids, vocab_size

    def __contains__(self, name: str) -> bool:
        return name in self._own or (name in self._shared and self._shared[name] in self._target)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        if name in self._shared:
            return self._target.take(self._shared[name], *shape)
        return self._own.take(name, *shape)

    def linear(self, linear: spec.Linear) -> StoredLinear:
        """Of a shared one, that of the target's head: the rows of the head's vocabulary."""
        names = [f"{part.name}.weight" for part in linear.parts]
        if not any(name in self._shared for name in names):
            return self._own.linear(linear)
        (name,) = names
        whole = spec.Part(self._shared[name].removesuffix(".weight"), self._vocab_size)
        found = self._target.linear(spec.Linear((whole,), linear.inputs, linear.bias))
        if self._ids is None:
            return found
        parts = tuple(part.rows(self._ids) for part in found.parts)
        return StoredLinear(parts, tuple(bias[self._ids] for bias in found.biases))

    def coded_bytes(self, linear: spec.Linear) -> int:
        """As FolderHeaders; a shared one is dense, as heads are."""
        if any(f"{part.name}.weight" in self._shared for part in linear.parts):
            return 0
        return self._own.coded_bytes(linear)

    def number_bytes(self, name: str) -> int:
        if name in self._shared:
            return self._target.number_bytes(self._shared[name])
        return self._own.number_bytes(name)


def target_ids(head: Head | ResidualHeads, own: Weights) -> torch.Tensor | None:
    """The target's ids of the head's tokens. None: it has the target's."""
    if isinstance(head, ResidualHeads):
        return own.take_ids(head.token_ids, head.heads[0].head.outputs) if head.token_ids else None
    count = head.network.head.outputs
    return torch.arange(count) + own.take_ids(head.id_offsets, count) if head.id_offsets else None
