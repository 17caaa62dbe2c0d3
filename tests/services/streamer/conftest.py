from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The embedded default model's folder; tests that use it carry the `model` mark."""
    from models.sources import ensure_model
    from services.config import Settings, cache_dir

    settings = Settings.for_tests()
    return ensure_model(settings.model, cache_dir(settings))
