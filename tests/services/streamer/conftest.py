from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop
from mesh_fixtures import http, mesh

__all__ = ["http", "mesh"]

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The embedded default model's folder; tests that use it carry the `model` mark."""
    from models.sources import ensure_model
    from services.api.settings import Settings, cache_dir

    settings = Settings.for_tests()
    return ensure_model(settings.model, cache_dir(settings))


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """The door runs on uvloop, whose transports differ in places from asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}
