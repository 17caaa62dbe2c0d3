"""Heads as they are trained, in torch: parameters under the published names, and the loss of a text. What a head
consists of is said by its reader (models/heads), as where it drafts.

    position          t           t + 1          t + 2
    token             x_t         x_t+1          x_t+2
    the model says    p_t: of x_t+1   p_t+1: of x_t+2   ...

A head drafts x_t+2 from what the model computed up to t and from x_t+1. It learns the whole distribution p_t+1 over its
vocabulary, which tells more of a position than the token that was chosen.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import kl_div, linear, log_softmax, rms_norm

from kernels.cpu_vectors import HAS_BFLOAT16_DOT
from models.check import parts_of
from models.heads.form import Form
from models.heads.head import Head
from models.heads.residual import ResidualHeads
from models.spec import Linear, Network, Norm
from models.weights import Weights

# What a draft token counts in the loss, in terms of the one before it: it is reached only if that one is accepted.
DISCOUNT = 0.8


class TargetParts(Protocol):
    """What is the model's and isn't trained."""

    network: Network
    embedding: torch.Tensor
    head: torch.Tensor


class Net:
    def __init__(self, head: Head | ResidualHeads, form: Form, model: TargetParts, tokens: torch.Tensor) -> None:
        """`tokens` [V'] are the ids of the draft vocabulary, rising."""
        self.form, self.model, self.tokens = form, model, tokens
        self.output, self._shared = head.output, head.shared
        self.parts: dict[str, nn.Parameter] = {}
        for item in parts_of(head):
            if isinstance(item, Norm):
                self.parts[f"{item.name}.weight"] = nn.Parameter(torch.ones(item.width))
            elif isinstance(item, Linear) and item != self.output:
                for part in item.parts:
                    self.parts[f"{part.name}.weight"] = weight = nn.Parameter(torch.empty(part.outputs, item.inputs))
                    nn.init.kaiming_uniform_(weight, math.sqrt(5))
        # The model's rows of the draft vocabulary; and what the head's own logits are made with.
        self.model_output = model.head[tokens].clone()
        self.drafts_with: torch.Tensor = self.model_output
        if form.trains_output:
            self.parts[_weight(self.output)] = own = nn.Parameter(self.model_output.clone())
            self.drafts_with = own
        # Products in bfloat16, where the CPU has instructions for them; parameters and sums stay float32.
        self.short_products = HAS_BFLOAT16_DOT
        # Whether the folder lacks the output head, where that is the model's: it is read from there. Most of a small
        # head is this; other servers want it whole.
        self.leaves_out_head = False

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
            says = linear(final, self.model_output).float().softmax(-1)
            for place, logits in enumerate(self.logits(ids, features)):
                divergence, hit = _compared(logits.float(), says[1 + place :])
                total = total + DISCOUNT**place * divergence
                hits.append(hit)
        return total, hits

    # For those who compute -------------------------------------------------------------------------------

    def weights(self, one: Linear) -> list[nn.Parameter]:
        """Of each part."""
        return [self.parts[f"{part.name}.weight"] for part in one.parts]

    def times(self, x: torch.Tensor, one: Linear) -> torch.Tensor:
        return linear(x, self.parts[_weight(one)])

    def normed(self, x: torch.Tensor, norm: Norm | None) -> torch.Tensor:
        return x if norm is None else rms_norm(x, (norm.width,), self.parts[f"{norm.name}.weight"], norm.epsilon)

    # The folder ------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """In the published layout."""
        used = torch.zeros(self.model.network.vocab_size, dtype=torch.bool)
        used[self.tokens] = True
        ids = {"d2t": self.tokens - torch.arange(len(self.tokens)), "t2d": used, "token_map": self.tokens}
        tensors = {name: part.detach() for name, part in self.parts.items()} | self.not_trained()
        write(folder, self.form.config, tensors | {name: ids[name] for name in self.form.names if name in ids})

    def not_trained(self) -> dict[str, torch.Tensor]:
        """Tensors of the folder that are the model's: the output head, unless it is read from there."""
        name = _weight(self.output)
        left_out = self.leaves_out_head and name in self.form.names
        if name in self.parts or name in self._shared or left_out:
            return {}
        return {name: self.model_output if self.output.outputs == len(self.tokens) else self.model.head}


def _weight(one: Linear) -> str:
    """Of a linear with one part."""
    (part,) = one.parts
    return f"{part.name}.weight"


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
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    fresh.replace(folder / "model.safetensors")
