from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_folder import write_tiny_model


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A whole model of 300 kB, without a chat template."""
    return write_tiny_model(tmp_path / "tiny-model")
