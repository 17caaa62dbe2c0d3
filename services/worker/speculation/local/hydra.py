"""Hydra (models/heads/residual.py), with or without a prefix layer over the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from services.api.drafter import Committed
from services.worker.running.head import HeadRows
from services.worker.speculation.local.head_drafter import WAITING_ROWS
from services.worker.speculation.local.residual_drafter import ResidualDrafter

if TYPE_CHECKING:
    from services.api.settings import Settings
    from services.worker.running.torch_model import TorchModel


class HydraDrafter(ResidualDrafter):
    name: ClassVar[str] = "hydra"

    def __init__(self, settings: Settings, model: TorchModel) -> None:
        super().__init__(settings, model)
        # Rows that the prefix layer has not read yet, by sequence.
        self._waiting: dict[int, HeadRows] = {}

    def commit(self, results: Sequence[Committed]) -> None:
        if self._model.prefix is None:
            super().commit(results)
            return
        rows: dict[int, HeadRows] = {}
        for each in results:
            row = self._with_waiting(each)
            here = rows if each.asked or len(row.tokens) >= WAITING_ROWS else self._waiting
            here[each.sequence_id] = row
        if rows:
            _, values = self._model.prefix.forward([*rows.values()])
            assert values is not None
            self._hidden |= zip(rows, values, strict=True)

    def _with_waiting(self, each: Committed) -> HeadRows:
        """The rows that wait, then these: each token where its hidden value is."""
        before = self._waiting.pop(each.sequence_id, None)
        if before is not None and before.start + len(before.tokens) == each.start:
            assert before.hidden is not None
            hidden = torch.cat([before.hidden, each.features])
            return HeadRows([*before.tokens, *each.tokens], before.start, each.pages, hidden, False)
        # A copy where it waits: features are valid until the next step.
        hidden = each.features if each.asked else each.features.clone()
        return HeadRows([*each.tokens], each.start, each.pages, hidden, False)

    def forget(self, sequence_ids: Sequence[int]) -> None:
        super().forget(sequence_ids)
        for sequence_id in sequence_ids:
            self._waiting.pop(sequence_id, None)
