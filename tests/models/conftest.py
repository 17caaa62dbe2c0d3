from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded default model, from the cache that `make test` fills."""
    from models.sources import ensure_model

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specmesh"
    return ensure_model("smollm2-135m-instruct", cache)
