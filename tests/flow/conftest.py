from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from running_mesh import MOCK, mesh_fixture

mock_mesh = mesh_fixture("module", engine="mock", mock_profile=MOCK)
# SmolLM2 in float32, all four processes.
real_mesh = mesh_fixture("module", dtype="float32")
