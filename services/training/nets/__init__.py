"""Heads as they are trained: of every form that models/heads describes."""

from __future__ import annotations

import torch

from models.heads.head import Head
from models.heads.table import HEADS
from services.training.nets.net import Net, TargetParts
from services.training.nets.passes import PassesNet
from services.training.nets.residual import ResidualNet


def net_of(method: str, model: TargetParts, tokens: torch.Tensor) -> Net:
    """A new head of this kind, over these tokens. Raises `ValueError` where none can be made for the model."""
    form, head = HEADS[method].made(model.network, len(tokens))
    if isinstance(head, Head):
        return PassesNet(head, form, model, tokens)
    return ResidualNet(head, form, model, tokens)
