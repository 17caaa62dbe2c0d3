"""A block drafter: EAGLE-3's layer and layout, trained as it drafts: all places of a draft in one pass, the later ones
from masks. A text's masks go through the layer in rounds (services/training/nets/layer.py): that of a place attends to
the text, as far as the draft that it belongs to, and to the masks of that draft before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from models.spec import Network
from services.training.nets.eagle3 import Eagle3Net
from services.training.nets.layer import Rounds


class BlockNet(Eagle3Net):
    BLOCK = 5

    def __init__(self, network: Network, embedding: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> None:
        super().__init__(network, embedding, head, tokens)
        self.mask_hidden = nn.Parameter(torch.randn(1, self.fc.in_features))
        # Any token does: the layer is told by the mask's hidden value.
        self.mask_token = network.eos_token_ids[0] if network.eos_token_ids else 0

    def logits(self, ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        embedded, hidden = self.embedding[ids[1:]], self.fc(features).float()
        mask, mask_hidden = self.embedding[self.mask_token], self.fc(self.mask_hidden).float()
        found, rounds = [], Rounds()
        for place in range(min(self.BLOCK, len(ids) - 1)):
            rows = len(ids) - 1 - place
            pair = (mask.expand(rows, -1), mask_hidden.expand(rows, -1)) if place else (embedded, hidden[:rows])
            found.append(linear(self.norm(self.midlayer(*pair, rounds)), self.lm_head))
        return found

    def config(self) -> dict[str, Any]:
        more = {"parallel_drafting": True, "ptd_token_id": self.mask_token, "block_size": self.BLOCK}
        return super().config() | more
