"""The weights of a head: its own, and what it shares with the target model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from models import spec
from models.errors import ModelError
from models.heads.fields import FOR_ANOTHER
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


def target_ids(head: Head | ResidualHeads, own: Weights, vocab_size: int) -> torch.Tensor | None:
    """The target's ids of the head's tokens, of its `vocab_size`. None: it has the target's. Raises `ModelError`."""
    name, count = head.id_offsets if isinstance(head, Head) else head.token_ids, head.output.outputs
    if not name:
        return None
    ids = own.take_ids(name, count)
    if isinstance(head, Head):
        ids = torch.arange(count) + ids
    _check_ids(name, ids, vocab_size)
    return ids


def _check_ids(name: str, ids: torch.Tensor, vocab_size: int) -> None:
    """Each of the target's ids once: a draft's probabilities belong to its tokens."""
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if len(outside):
        said = f"tensor {name} names the id {int(outside[0])}, and the model's vocabulary has {vocab_size} tokens"
        raise ModelError(said, FOR_ANOTHER)
    seen = torch.zeros(vocab_size, dtype=torch.bool)
    seen[ids] = True
    if int(seen.sum()) == len(ids):
        return
    order = ids.sort(stable=True)
    again = order.indices[1:][order.values[1:] == order.values[:-1]]
    raise ModelError(f"tensor {name} names the id {int(ids[int(again.min())])} twice", FOR_ANOTHER)
