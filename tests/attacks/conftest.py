from __future__ import annotations

import sys
from pathlib import Path

from mesh_fixtures import http, mesh

__all__ = ["http", "mesh"]

sys.path.insert(0, str(Path(__file__).parents[1] / "flow"))
