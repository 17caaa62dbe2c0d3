from __future__ import annotations

import sys
from pathlib import Path

# Ranks as threads, and what is seen of processes.
for place in ("models", "flow", "services/worker/parallel"):
    sys.path.insert(0, str(Path(__file__).parents[3] / place))
