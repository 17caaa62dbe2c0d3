from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from running_mesh import MOCK, mesh_fixture

mock_mesh = mesh_fixture("module", engine="mock", mock_profile=MOCK)
# SmolLM2, all four processes: in 8 bits, as that is the fastest, for all files of a process that ask for it.
real_mesh = mesh_fixture("package", dtype="int8")
# For comparisons with transformers. Long prompts are computed in chunks.
float32_mesh = mesh_fixture("package", dtype="float32", max_step_tokens=64, max_context=1024)
