"""Puts what tests share on their path."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine drafts nothing within the time that plain drafts have while loops are compiled."""
    from services.proposer.plain import texts

    monkeypatch.setattr(texts, "WHILE_COMPILING", math.inf)
