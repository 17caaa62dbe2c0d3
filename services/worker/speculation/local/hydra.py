"""Hydra (models/heads/residual.py)."""

from __future__ import annotations

from typing import ClassVar

from services.worker.speculation.local.residual_drafter import ResidualDrafter


class HydraDrafter(ResidualDrafter):
    name: ClassVar[str] = "hydra"
