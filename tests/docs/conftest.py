from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from bench.running_mesh import RunningMesh

MOCK = '{"step_ms": 1, "acceptance": 0.6, "eos_every": 200, "vocab_size": 49152}'


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """All four processes with the mock engine: what is shown is that commands work, not what a model says."""
    mesh = RunningMesh(tmp_path_factory.mktemp("mesh"), {"engine": "mock", "mock_profile": MOCK})
    try:
        mesh.wait_until_ready()
        yield mesh
    finally:
        mesh.stop()
