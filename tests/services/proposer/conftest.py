"""Puts what tests share on their path."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE / folder) for folder in ("fast", "segments", "store"))]


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine drafts nothing within the time that plain drafts have while loops are compiled."""
    from services.proposer.plain import texts

    monkeypatch.setattr(texts, "WHILE_COMPILING", math.inf)


@pytest.fixture(params=["plain", "compiled"])
def each_form(request: pytest.FixtureRequest, compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import asking

    monkeypatch.setattr(asking, "FORM", request.param)


@pytest.fixture(scope="session")
def compiled() -> None:
    from services.proposer.fast import compiling

    compiling.start().join()
    assert compiling.is_compiled()
