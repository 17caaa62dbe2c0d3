"""Tests on a Ray cluster of this machine: `make ray`, or pip install '.[ray]'. Without it they are skipped."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest

FLOW = Path(__file__).parents[1] / "flow"
sys.path[:0] = [str(Path(__file__).parent), str(FLOW)]

# Read by Ray when it is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# Calls of these clusters need a token, as those of any cluster should; this one is of the test run alone.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ray)
