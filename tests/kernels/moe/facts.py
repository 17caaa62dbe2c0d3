"""What a router does at its plainest; a test names what is otherwise."""

from __future__ import annotations

from typing import Any

PLAIN: dict[str, Any] = {
    "top_k": 2,
    "scoring": "softmax",
    "normalize": False,
    "epsilon": 0.0,
    "normalize_floor": False,
    "scale": 1.0,
    "groups": 1,
    "top_groups": 1,
    "group_by_best": False,
}
