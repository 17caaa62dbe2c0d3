"""EAGLE-3 (models/heads/eagle3.py)."""

from __future__ import annotations

from typing import ClassVar

from services.worker.speculation.local.head_drafter import HeadDrafter


class Eagle3Drafter(HeadDrafter):
    name: ClassVar[str] = "eagle3"
