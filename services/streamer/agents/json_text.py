"""Values from what a model wrote as JSON, and JSON of them that every client can read. None where there is none."""

from __future__ import annotations

import json
from typing import Any


def read(text: str) -> Any:
    """Raises ValueError, also for what is nested deeper than Python follows."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def written(value: Any) -> str | None:
    """None: JSON has no such number, or it is nested too deep."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # Half a character may stand in an escape, and nowhere else.
        return text if sendable(text) else json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def sendable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
