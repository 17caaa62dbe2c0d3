"""The sampling that a model's authors suggest: generation_config.json of its folder. Nothing here applies it."""

from __future__ import annotations

import math
from pathlib import Path

from models.bounded_json import parsed

FILE = "generation_config.json"
LARGEST = 1 << 20  # bytes
# As fields of a request are called.
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def suggested(folder: Path) -> dict[str, float]:
    """By field; empty if the file is missing, is damaged, or suggests nothing."""
    try:
        with (folder / FILE).open("rb") as file:
            found = parsed(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    values = {name: found.get(name) for name in FIELDS} if isinstance(found, dict) else {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
