"""Prediction: the caller sends the text that it expects, and the draft continues in it. After a difference the position
in the prediction is searched again (fast/drafting/predicting.py)."""

from __future__ import annotations

from typing import ClassVar

from services.proposer.fast import PREDICTION
from services.proposer.text_drafter import TextDrafter


class PredictionDrafter(TextDrafter):
    name: ClassVar[str] = "prediction"
    sources: ClassVar[int] = PREDICTION
