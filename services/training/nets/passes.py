"""Heads with layers as they are trained: on their own output, as they will be used. In round r a position reads what
the head itself computed r - 1 positions before, not what the model did.

A block drafter is trained as it drafts, too: all places of a draft in one pass, the later ones from masks. A text's
masks go through the layer in rounds: that of a place attends to the text, as far as the draft that it belongs to, and
to the masks of that draft before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import linear, silu

from models.heads.form import Form
from models.heads.head import Head
from models.spec import Attention, Beside, Fused, Layer, Linear, Mlp, Norm
from models.taps import FINAL
from models.weights import Weights, norm_weight
from services.training.nets.layer import Rounds, attended
from services.training.nets.net import Net, TargetParts

# Draft tokens that a head is trained for; a block has its own number of them.
ROUNDS = 3


class PassesNet(Net):
    def __init__(self, head: Head, form: Form, model: TargetParts, tokens: torch.Tensor) -> None:
        super().__init__(head, form, model, tokens)
        self.head, self.layers = head, head.network.layers
        if head.mask is not None:
            width = len(head.taps) * head.network.hidden_size
            self.parts[head.mask.features] = nn.Parameter(torch.randn(1, width))

    # The model's layers, to begin with ---------------------------------------------------------------------

    def places(self) -> list[int]:
        """The layers of the model that its own begin as: a single one as the last, more of them evenly spread."""
        last, count = len(self.model.network.layers) - 1, len(self.layers)
        return [round(place * last / (count - 1)) for place in range(count)] if count > 1 else [last]

    @torch.no_grad()
    def start(self, weights: Weights) -> None:
        """The hidden value begins as the model's after the highest tap, and goes on as in the model's last layer, which
        already knows how to make one that the model's head reads: answers are few, and what the model knows needn't be
        learned from them."""
        hidden, own = self.model.network.hidden_size, self.head.network
        for one in (self.head.combine, own.entry.linear if isinstance(own.entry, Fused) else None):
            if one is not None:
                (weight,) = self.weights(one)
                weight.zero_()
                weight[:, -hidden:] = torch.eye(hidden)
        for layer, place in zip(self.layers, self.places(), strict=True):
            self._begin_as(self.model.network.layers[place], layer, weights)
        self._begin_norm(own.norm, weights, self.model.network.norm)

    def _begin_as(self, theirs: Layer, layer: Layer, weights: Weights) -> None:
        """What the attention reads before the hidden value begins at zero."""
        attention, mlp = parts_of_layer(layer)
        if not isinstance(theirs.attention, Attention) or not isinstance(theirs.mlp, Mlp):
            return
        pairs = (
            (attention.qkv, theirs.attention.qkv), (attention.output, theirs.attention.output),
            (mlp.gate_up, theirs.mlp.gate_up), (mlp.down, theirs.mlp.down),
        )  # fmt: skip
        for own, other in pairs:
            self._begin_linear(own, weights, other)
        self._begin_norm(layer.attention_norm, weights, theirs.attention_norm)
        self._begin_norm(layer.mlp_norm, weights, theirs.mlp_norm)

    def _begin_linear(self, own: Linear, weights: Weights, theirs: Linear) -> None:
        """A linear that reads more has the model's weights at its end."""
        dense = weights.linear(theirs).dense(torch.float32)
        parts = torch.split(dense, [part.outputs for part in own.parts])
        for weight, rows in zip(self.weights(own), parts, strict=True):
            weight.zero_()
            weight[:, -theirs.inputs :] = rows

    def _begin_norm(self, own: Norm | None, weights: Weights, theirs: Norm | None) -> None:
        if own is not None and theirs is not None:
            self.parts[f"{own.name}.weight"].copy_(norm_weight(theirs, weights))

    # Drafts ----------------------------------------------------------------------------------------------

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        embedded, network = self.model.embedding[ids], self.head.network
        if network.entry is None:
            # The later tokens of a draft are drafted as the first one is, from tokens alone.
            x = self._through(embedded, [], [Rounds() for _ in self.layers])
            return [self._drafted(x[1:])]
        hidden, mask = self._mixed(features), self.head.mask
        masked = None if mask is None else (self.model.embedding[mask.token], self._mixed(self.parts[mask.features]))
        found, rounds = [], [Rounds() for _ in self.layers]
        for turn in range(min(ROUNDS if mask is None else mask.block, len(ids) - 1)):
            rows = len(ids) - 1 - turn
            pair = embedded[1 + turn :], hidden[:rows]
            if masked is not None and turn:
                pair = masked[0].expand(rows, -1), masked[1].expand(rows, -1)
            x = self._entered(*pair, rounds)
            found.append(self._drafted(x))
            hidden = self.normed(x, network.norm) if self.head.follows == FINAL else x
        return found

    def _mixed(self, features: torch.Tensor) -> torch.Tensor:
        return features if self.head.combine is None else self.times(features, self.head.combine).float()

    def _drafted(self, x: torch.Tensor) -> torch.Tensor:
        return linear(self.normed(x, self.head.network.norm), self.drafts_with)

    def _entered(self, embedded: torch.Tensor, hidden: torch.Tensor, rounds: Sequence[Rounds]) -> torch.Tensor:
        entry = self.head.network.entry
        if isinstance(entry, Fused):
            pair = [self.normed(embedded, entry.embedding_norm), self.normed(hidden, entry.hidden_norm)]
            return self._through(self.times(torch.cat(pair, -1), entry.linear).float(), [], rounds)
        assert isinstance(entry, Beside)
        return self._through(
            self.normed(hidden, entry.hidden_norm), [self.normed(embedded, entry.embedding_norm)], rounds
        )

    def _through(self, x: torch.Tensor, beside: list[torch.Tensor], rounds: Sequence[Rounds]) -> torch.Tensor:
        """All layers; the first one's attention reads what is `beside` its own input, too."""
        for layer, kept in zip(self.layers, rounds, strict=True):
            attention, mlp = parts_of_layer(layer)
            read = torch.cat([*beside, self.normed(x, layer.attention_norm)], -1)
            q, k, v = (linear(read, weight) for weight in self.weights(attention.qkv))
            x, beside = x + self.times(attended(attention, q, k, v, kept), attention.output), []
            read = self.normed(x, layer.mlp_norm)
            gate, up = (linear(read, weight) for weight in self.weights(mlp.gate_up))
            x = (x + self.times(silu(gate) * up, mlp.down)).float()
        return x

    def not_trained(self) -> dict[str, torch.Tensor]:
        """And the embedding of a whole model."""
        name = self.head.network.embedding
        return super().not_trained() | ({} if name in self.head.shared else {name: self.model.embedding})


def parts_of_layer(layer: Layer) -> tuple[Attention, Mlp]:
    """Its form has no others (models/heads/form.py)."""
    assert isinstance(layer.attention, Attention) and isinstance(layer.mlp, Mlp)
    return layer.attention, layer.mlp
