"""MTP: the block that the model was trained with (models/heads/mtp.py)."""

from __future__ import annotations

from typing import ClassVar

from services.worker.speculation.local.head_drafter import HeadDrafter


class MtpDrafter(HeadDrafter):
    name: ClassVar[str] = "mtp"
