"""A draft model: a small Llama with the model's embedding, head and tokenizer. Its layers begin as some of the model's,
evenly spread, and learn to do without the others."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import linear

from models.spec import Network
from models.taps import Tap
from models.weights import Weights
from services.training.nets.layer import DecoderLayer, Rounds, check_layer, layer_config, sizes, start_norm
from services.training.nets.net import Net, write


class DraftModelNet(Net):
    LAYERS = 2
    FROM_MODEL = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        super().__init__(network, embedding, head, tokens)
        self.whole_head = head
        self.layers = nn.ModuleList(DecoderLayer(network) for _ in self.chosen())
        self.norm = nn.RMSNorm(network.hidden_size, sizes(network)[2])

    @staticmethod
    def check(network: Network) -> None:
        check_layer(network)

    @staticmethod
    def taps(network: Network) -> tuple[Tap, ...]:
        return ()

    def chosen(self) -> list[int]:
        """The layers of the model that it begins with: the first, the last, and some between."""
        last = len(self.network.layers) - 1
        count = min(self.LAYERS, last + 1)
        return [round(place * last / max(1, count - 1)) for place in range(count)]

    @torch.no_grad()
    def start(self, weights: Weights) -> None:
        for layer, place in zip(self.layers, self.chosen(), strict=True):
            assert isinstance(layer, DecoderLayer)
            layer.start(self.network, weights, layer.input_layernorm, place)
        if self.network.norm is not None:
            start_norm(self.norm, weights, self.network.norm)

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        """One place: the later tokens of a draft are drafted as the first one is, from tokens alone."""
        x = self.embedding[ids]
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            x = layer.through(x, layer.input_layernorm(x), Rounds())
        return [linear(self.norm(x[1:]), self.draft_head)]

    def save(self, folder: Path) -> None:
        tied = torch.equal(self.whole_head, self.embedding)
        tensors = {f"model.{name}": part.detach() for name, part in self.named_parameters()}
        tensors["model.embed_tokens.weight"] = self.embedding
        if not tied:
            tensors["lm_head.weight"] = self.whole_head
        config = layer_config(self.network) | {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": len(self.layers),
            "tie_word_embeddings": tied, "eos_token_id": list(self.network.eos_token_ids),
        }  # fmt: skip
        write(folder, config, tensors)
