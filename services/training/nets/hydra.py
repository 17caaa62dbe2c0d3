"""Hydra: Medusa's blocks, each of which also reads the embeddings of the text's last token and of the draft's tokens
before its own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import linear, silu

from models.spec import Network
from models.taps import FINAL, Tap
from services.training.nets.net import Net, write


class HydraNet(Net):
    HEADS = 4

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        super().__init__(network, embedding, head, tokens)
        hidden = network.hidden_size
        blocks = [_Block(hidden, hidden * (place + 2)) for place in range(self.HEADS)]
        self.hydra_mlp = nn.ModuleList(nn.ModuleList([block]) for block in blocks)

    @staticmethod
    def taps(network: Network) -> tuple[Tap, ...]:
        return (FINAL,)

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        embedded, found = self.embedding[ids], []
        for place in range(min(self.HEADS, len(ids) - 1)):
            rows = len(ids) - 1 - place
            before = [embedded[ahead : ahead + rows] for ahead in range(1, place + 2)]
            x = torch.cat([features[:rows], *before], -1)
            found.append(linear(self.hydra_mlp[place][0](x), self.draft_head))  # type: ignore[index]
        return found

    def save(self, folder: Path) -> None:
        tensors = {name: part.detach() for name, part in self.named_parameters()}
        tensors |= self.head_named("hydra_lm_head.0.weight") | {"token_map": self.tokens}
        config = {
            "architectures": ["HydraModel"], "model_type": "hydra", "hidden_size": self.network.hidden_size,
            "hydra_num_heads": self.HEADS, "hydra_num_layers": 1, "hydra_head_arch": "mlp", "grounded_heads": True,
            "vocab_size": self.network.vocab_size, "truncated_vocab_size": len(self.tokens), "original_lm_head": True,
        }  # fmt: skip
        write(folder, config, tensors)


class _Block(nn.Module):
    """Begins as Medusa's: the hidden value as it is, and nothing added."""

    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.linear, self.res_connection = (nn.Linear(wide, hidden, bias=False) for _ in range(2))
        nn.init.zeros_(self.linear.weight)
        nn.init.eye_(self.res_connection.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.res_connection(x) + silu(self.linear(x))
        return out
