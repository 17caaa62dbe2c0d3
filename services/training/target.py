"""The frozen model that a head is trained for: its features of whole texts, its embedding and its head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from models.batch import Stretch
from models.config import read_network
from models.taps import FINAL, Tap
from models.weights import Weights
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel


class Target:
    """`taps` are what the head reads; the final values are kept beside them, for the distributions it learns."""

    def __init__(self, folder: Path, taps: Sequence[Tap], wanted: Wanted) -> None:
        self.network = read_network(folder)
        self.taps = tuple(taps)
        kept = self.taps if FINAL in self.taps else (*self.taps, FINAL)
        assert kept[-1] == FINAL
        self.model: TorchModel = load_torch_model(folder, wanted, kept)
        weights = Weights(folder)
        network = self.network
        (part,) = network.head.parts
        # float32: gradients pass through them.
        self.embedding = weights.take(network.embedding, network.vocab_size, network.hidden_size).float()
        self.head = weights.take(f"{part.name}.weight", part.outputs, network.hidden_size).float()

    @torch.no_grad()
    def features(self, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a text: the taps side by side [T, taps · H], and the final values [T, H]; float32."""
        pages = list(range(-(-len(ids) // self.model.facts.page_tokens)))
        output = self.model.forward([Stretch(list(ids), 0, pages, len(ids))])
        assert output.features is not None
        found, hidden = output.features.float(), self.network.hidden_size
        # The model may write the next text's values over these.
        return found[:, : len(self.taps) * hidden].clone(), found[:, -hidden:].clone()
