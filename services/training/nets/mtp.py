"""An MTP block in the layout of DeepSeek-V3 with a plain layer, trained on its own output like EAGLE-3's. Its embedding
and its head are the model's: the head's rows of the draft vocabulary, where that is smaller."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import linear

from models.spec import Network
from models.taps import FINAL, Tap
from models.weights import Weights
from services.training.nets.layer import DecoderLayer, Rounds, check_layer, layer_config, sizes, start_norm
from services.training.nets.net import Net, write


class MtpNet(Net):
    ROUNDS = 3

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        super().__init__(network, embedding, head, tokens)
        self.block = _Block(network)

    @staticmethod
    def check(network: Network) -> None:
        check_layer(network)

    @staticmethod
    def taps(network: Network) -> tuple[Tap, ...]:
        return (FINAL,)

    @torch.no_grad()
    def start(self, weights: Weights) -> None:
        """The hidden value begins as the model's and goes on as in the model's last layer."""
        hidden = self.network.hidden_size
        self.block.eh_proj.weight.zero_()
        self.block.eh_proj.weight[:, -hidden:] = torch.eye(hidden)
        self.block.start(self.network, weights, self.block.input_layernorm)
        if self.network.norm is not None:
            start_norm(self.block.shared_head["norm"], weights, self.network.norm)  # type: ignore[arg-type]

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        embedded, hidden = self.embedding[ids], features
        found, rounds = [], Rounds()
        for turn in range(min(self.ROUNDS, len(ids) - 1)):
            rows = len(ids) - 1 - turn
            hidden = self.block(embedded[1 + turn :], hidden[:rows], rounds)
            found.append(linear(self.block.shared_head["norm"](hidden), self.draft_head))
        return found

    def save(self, folder: Path) -> None:
        layers = len(self.network.layers)
        name = f"model.layers.{layers}."
        tensors = {f"{name}{own}": part.detach() for own, part in self.block.named_parameters()}
        config = layer_config(self.network) | {
            "architectures": ["DeepSeekMTPModel"], "model_type": "deepseek_mtp", "num_hidden_layers": layers,
            "num_nextn_predict_layers": 1,
        }  # fmt: skip
        if self.reduced:
            tensors |= self.head_named(f"{name}shared_head.head.weight") | {"d2t": self.offsets()}
            config["draft_vocab_size"] = len(self.tokens)
        write(folder, config, tensors)


class _Block(DecoderLayer):
    def __init__(self, network: Network) -> None:
        super().__init__(network)
        hidden, (_, _, epsilon) = network.hidden_size, sizes(network)
        self.enorm, self.hnorm = nn.RMSNorm(hidden, epsilon), nn.RMSNorm(hidden, epsilon)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.shared_head = nn.ModuleDict({"norm": nn.RMSNorm(hidden, epsilon)})

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, rounds: Rounds) -> torch.Tensor:
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1)).float()
        return self.through(x, self.input_layernorm(x), rounds)
