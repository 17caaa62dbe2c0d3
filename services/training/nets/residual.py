"""Medusa and Hydra as they are trained: a small network for each of the next tokens, in front of the model's own output
head. Only blocks are trained. They begin as doing nothing: the hidden value goes through as it is."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear, silu

from models.heads.form import Form
from models.heads.residual import ResidualHeads
from services.training.nets.net import Net, TargetParts


class ResidualNet(Net):
    def __init__(self, head: ResidualHeads, form: Form, model: TargetParts, tokens: torch.Tensor) -> None:
        super().__init__(head, form, model, tokens)
        self.heads = head
        for block in (block for one in head.heads for block in one.blocks):
            nn.init.zeros_(*self.weights(block.linear))
            if block.skip is not None:
                nn.init.eye_(*self.weights(block.skip))

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        embedded, found = self.model.embedding[ids], []
        for place, head in enumerate(self.heads.heads[: len(ids) - 1]):
            rows = len(ids) - 1 - place
            x = features[:rows]
            if self.heads.reads_tokens:
                x = torch.cat([x, *(embedded[ahead : ahead + rows] for ahead in range(1, place + 2))], -1)
            for block in head.blocks:
                skipped = x if block.skip is None else self.times(x, block.skip)
                x = skipped + silu(self.times(x, block.linear))
            found.append(linear(x, self.drafts_with))
        return found
