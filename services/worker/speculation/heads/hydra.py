"""Hydra (models/heads/residual.py), with or without a prefix layer over the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from services.api.drafter import Committed
from services.worker.speculation.heads.head_drafter import Following, read_now, wait_in_place
from services.worker.speculation.heads.residual_drafter import ResidualDrafter

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.worker.running.torch_model import TorchModel


class HydraDrafter(ResidualDrafter):
    def __init__(self, name: str, settings: Settings | None, model: TorchModel) -> None:
        super().__init__(name, settings, model)
        # Texts as the prefix layer has read them: each token where its hidden value is.
        self._known: dict[int, Following] = {}

    def commit(self, results: Sequence[Committed]) -> None:
        if self._model.prefix is None:
            super().commit(results)
            return
        rows, features = read_now(self._known, results, wait_in_place, asks=False)
        if rows:
            _, values = self._model.prefix.forward([*rows.values()], torch.cat(features))
            assert values is not None
            self._hidden |= zip(rows, values, strict=True)

    def forget(self, text_ids: Sequence[int]) -> None:
        super().forget(text_ids)
        for text_id in text_ids:
            self._known.pop(text_id, None)
