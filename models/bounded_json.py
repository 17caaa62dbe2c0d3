"""JSON of a model's files, read into no more memory than its size suggests."""

from __future__ import annotations

import json
from typing import Any

# An empty list takes two bytes in a file and sixty in memory. The largest tokenizers have 600 000 lists (merges).
MAX_CONTAINERS = 1 << 21


def parsed(raw: bytes, **how: Any) -> Any:
    """ValueError, RecursionError: it is no JSON, or has too many lists and objects. `how`: as of json.loads."""
    containers = raw.count(b"[") + raw.count(b"{")
    if containers > MAX_CONTAINERS:
        raise ValueError(f"it has {containers} lists and objects; at most {MAX_CONTAINERS} are read")
    return json.loads(raw, **how)
