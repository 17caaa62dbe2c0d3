from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from running_mesh import RunningMesh, running_mesh

MOCK = '{"step_ms": 2, "acceptance": 0.6, "vocab_size": 49152}'


@pytest.fixture(scope="module")
def mock_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), engine="mock", mock_profile=MOCK) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def real_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """SmolLM2 in float32, all four processes."""
    with running_mesh(tmp_path_factory.mktemp("mesh"), dtype="float32") as mesh:
        yield mesh
