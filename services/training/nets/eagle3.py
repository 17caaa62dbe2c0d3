"""EAGLE-3's layer, trained on its own output as it will be used: in round r a position reads what the head itself
computed r - 1 positions before, not what the model did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from models.spec import Network
from models.taps import Tap
from models.weights import Weights
from services.training.nets.layer import DecoderLayer, Rounds, check_layer, layer_config, sizes, start_norm
from services.training.nets.net import Net, write


class Eagle3Net(Net):
    ROUNDS = 3

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        super().__init__(network, embedding, head, tokens)
        hidden = network.hidden_size
        self.fc = nn.Linear(len(self.taps(network)) * hidden, hidden, bias=False)
        self.midlayer = PairedLayer(network)
        self.norm = nn.RMSNorm(hidden, sizes(network)[2])
        self.lm_head = nn.Parameter(self.draft_head.clone())

    @staticmethod
    def check(network: Network) -> None:
        check_layer(network)

    @staticmethod
    def taps(network: Network) -> tuple[Tap, ...]:
        count = len(network.layers)
        return tuple(dict.fromkeys((min(1, count - 1), count // 2 - 1, max(0, count - 4))))

    @torch.no_grad()
    def start(self, weights: Weights) -> None:
        """The hidden value begins as the model's after the highest tap, and goes on as in the model's last layer:
        answers are few, and what the model knows needn't be learned from them."""
        hidden = self.network.hidden_size
        self.fc.weight.zero_()
        self.fc.weight[:, -hidden:] = torch.eye(hidden)
        self.midlayer.start(self.network, weights, self.midlayer.hidden_norm)
        if self.network.norm is not None:
            start_norm(self.norm, weights, self.network.norm)

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        embedded, hidden = self.embedding[ids], self.fc(features).float()
        found, rounds = [], Rounds()
        for turn in range(min(self.ROUNDS, len(ids) - 1)):
            rows = len(ids) - 1 - turn
            hidden = self.midlayer(embedded[1 + turn :], hidden[:rows], rounds)
            found.append(linear(self.norm(hidden), self.lm_head))
        return found

    def save(self, folder: Path) -> None:
        tensors = {name: part.detach() for name, part in self.named_parameters() if name != "lm_head"}
        used = torch.zeros(self.network.vocab_size, dtype=torch.bool)
        used[self.tokens] = True
        tensors |= {"lm_head.weight": self.lm_head.detach(), "d2t": self.offsets(), "t2d": used}
        write(folder, self.config(), tensors)

    def config(self) -> dict[str, Any]:
        return layer_config(self.network) | {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": len(self.tokens),
            "tie_word_embeddings": False,
            "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in self.taps(self.network) if isinstance(tap, int)],
        }  # fmt: skip


class PairedLayer(DecoderLayer):
    """Its attention reads the token's embedding beside the hidden value."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, 2 * network.hidden_size)
        self.hidden_norm = nn.RMSNorm(network.hidden_size, sizes(network)[2])

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, rounds: Rounds) -> torch.Tensor:
        pair = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        return self.through(hidden, pair, rounds)
