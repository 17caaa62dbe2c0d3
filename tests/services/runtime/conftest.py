from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def with_terminal() -> Iterator[None]:
    """Children end with their terminal, whatever these tests run under."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
