"""mxfp4 as gpt-oss ships it: experts in codes of 4 bits, everything else in floats. The codes are in the tensors of all
experts (models/stacks.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.quantized.plain import Plain


class Mxfp4(Plain):
    told = "mxfp4 experts"

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Which modules aren't coded shows by their tensors."""
