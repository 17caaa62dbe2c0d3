"""Medusa: a block for each of the next tokens, in front of the model's own head. Only blocks are trained."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import linear, silu

from models.spec import Network
from models.taps import FINAL, Tap
from services.training.nets.net import Net, write


class MedusaNet(Net):
    HEADS = 4

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        super().__init__(network, embedding, head, tokens)
        hidden = network.hidden_size
        self.blocks = nn.ParameterList(torch.zeros(hidden, hidden) for _ in range(self.HEADS))

    @staticmethod
    def taps(network: Network) -> tuple[Tap, ...]:
        return (FINAL,)

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for place, block in enumerate(list(self.blocks)[: len(ids) - 1]):
            x = features[: len(ids) - 1 - place]
            found.append(linear(x + silu(linear(x, block)), self.draft_head))
        return found

    def save(self, folder: Path) -> None:
        tensors = {f"blocks.{place}.layers.0.weight": block.detach() for place, block in enumerate(self.blocks)}
        tensors |= self.head_named("lm_heads.0.weight") | {"token_map": self.tokens}
        config = {
            "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": self.network.hidden_size,
            "num_heads": self.HEADS, "num_hidden_layers": 1, "vocab_size": self.network.vocab_size,
            "truncated_vocab_size": len(self.tokens), "original_lm_head": True,
        }  # fmt: skip
        write(folder, config, tensors)
