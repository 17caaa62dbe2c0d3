"""EAGLE of the first generation (models/heads/eagle.py)."""

from __future__ import annotations

from typing import ClassVar

from services.worker.speculation.local.head_drafter import HeadDrafter


class EagleDrafter(HeadDrafter):
    name: ClassVar[str] = "eagle"
