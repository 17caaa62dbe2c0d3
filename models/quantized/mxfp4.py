"""mxfp4 as gpt-oss ships it: experts in codes of 4 bits, everything else in floats. The codes are in the tensors of all
experts (models/stacks.py), and made dense as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.quantized.plain import Plain


class Mxfp4(Plain):
    told = "mxfp4 experts, made dense as they are loaded"

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Which modules aren't coded shows by their tensors."""
