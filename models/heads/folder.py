"""A head's folder beside its target's: which head it is, and its weights. A method's reader says what the head consists
of; tensors that the folder lacks (embedding, head) are the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path

import torch

from models import spec
from models.config import Fields, read_network
from models.errors import ModelError
from models.heads.head import DRAFT_MODEL, Head
from models.heads.residual import ResidualHeads
from models.quantized.stored import StoredLinear
from models.sources import read_json
from models.spec import Network
from models.weights import Weights

Reader = Callable[[Fields, Collection[str], Network], Head | ResidualHeads]

# The reader of each method's folders. A draft model is any model with the target's tokenizer.
READERS: dict[str, str] = {
    "eagle": "models.heads.eagle:read",
    "eagle3": "models.heads.eagle3:read",
    "hydra": "models.heads.residual:read_hydra",
    "medusa": "models.heads.residual:read_medusa",
    "mtp": "models.heads.mtp:read",
}


def read_head(method: str, folder: Path, weights: Weights, target: Network) -> Head | ResidualHeads:
    """Raises `ModelError` that says what of the folder doesn't fit the target."""
    if method == DRAFT_MODEL:
        network = read_network(folder)
        if network.vocab_size != target.vocab_size:
            sizes = f"{network.vocab_size} tokens, the model's {target.vocab_size}"
            raise ModelError(f"the draft model's vocabulary has {sizes}", "use a draft model with the same tokenizer")
        return Head(method, network)
    module, _, name = READERS[method].partition(":")
    read: Reader = getattr(import_module(module), name)
    return read(Fields(read_json(folder / "config.json")), weights.names, target)


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
