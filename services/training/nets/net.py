"""Heads as they are trained, in torch: parameters under the published names, and the loss of a text.

    position          t           t + 1          t + 2
    token             x_t         x_t+1          x_t+2
    the model says    p_t: of x_t+1   p_t+1: of x_t+2   ...

A head drafts x_t+2 from what the model computed up to t and from x_t+1. It learns the whole distribution p_t+1 over its
vocabulary, which tells more of a position than the token that was chosen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import kl_div, linear, log_softmax

from kernels.cpu_vectors import HAS_BFLOAT16_DOT
from models.spec import Network
from models.taps import Tap
from models.weights import Weights

# What a draft token counts in the loss, in terms of the one before it: it is reached only if that one is accepted.
DISCOUNT = 0.8


class Net(nn.Module):
    # Files of the model's folder that the head's folder needs, too.
    FROM_MODEL: tuple[str, ...] = ()

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        """`tokens` [V'] are the ids of the draft vocabulary, rising. Raises `ValueError` as `check` does."""
        super().__init__()
        self.check(network)
        self.network = network
        # They are the model's and aren't trained.
        self.embedding, self.draft_head, self.tokens = embedding, head[tokens].clone(), tokens
        # Products in bfloat16, where the CPU has instructions for them; parameters and sums stay float32.
        self.short_products = HAS_BFLOAT16_DOT
        # Whether the folder lacks the output head, where that is the model's: it is read from there. Most of a small
        # head is this; other servers want it whole.
        self.leaves_out_head = False

    @staticmethod
    def check(network: Network) -> None:
        """Raises `ValueError` that says why no head of this kind can be trained for the model."""

    @staticmethod
    def taps(network: Network) -> tuple[Tap, ...]:
        """What of the model it reads."""
        raise NotImplementedError

    def start(self, weights: Weights) -> None:
        """Copy what the head begins with from the model's tensors."""

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        """Of one text: by place in the draft, at most the text's length - 1 places; the one at place p has rows for the
        positions 0 .. length - 2 - p, over the draft vocabulary."""
        raise NotImplementedError

    def loss(self, ids: torch.Tensor, features: torch.Tensor, final: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
        """Of one text: the mean over positions, and by place in the draft the share where the most probable token is
        the model's."""
        total, hits = features.new_zeros(()), []
        with torch.autocast("cpu", torch.bfloat16, enabled=self.short_products):
            says = linear(final, self.draft_head).float().softmax(-1)
            for place, logits in enumerate(self.logits(ids, features)):
                divergence, hit = _compared(logits.float(), says[1 + place :])
                total = total + DISCOUNT**place * divergence
                hits.append(hit)
        return total, hits

    def save(self, folder: Path) -> None:
        """In the published layout."""
        raise NotImplementedError

    # For those who write ----------------------------------------------------------------------------------

    @property
    def reduced(self) -> bool:
        """Whether it has fewer tokens than the model."""
        return len(self.tokens) < self.network.vocab_size

    def head_named(self, name: str) -> dict[str, torch.Tensor]:
        """The model's output head as a tensor of the folder."""
        return {} if self.leaves_out_head else {name: self.draft_head}

    def offsets(self) -> torch.Tensor:
        """From its ids to the model's: the tensor d2t."""
        return self.tokens - torch.arange(len(self.tokens))


def _compared(logits: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, float]:
    divergence = kl_div(log_softmax(logits, -1), wanted, reduction="batchmean")
    return divergence, float((logits.argmax(-1) == wanted.argmax(-1)).float().mean())


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """bfloat16, and whole: a head is there or it isn't."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: (t.to(torch.bfloat16) if t.is_floating_point() else t).contiguous() for name, t in tensors.items()}
    fresh = folder / "model.safetensors.new"
    save_file(kept, fresh)
    # Written for its owner alone otherwise.
    fresh.chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    fresh.replace(folder / "model.safetensors")
