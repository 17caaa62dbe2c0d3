"""A draft model: a smaller model with the same tokenizer."""

from __future__ import annotations

from typing import ClassVar

from services.worker.speculation.local.head_drafter import HeadDrafter


class DraftModelDrafter(HeadDrafter):
    name: ClassVar[str] = "draft_model"
