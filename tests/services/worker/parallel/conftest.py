from __future__ import annotations

import sys
from pathlib import Path

# Ranks as threads, workers around runners, and what is seen of processes.
for place in ("models", "flow", "services/worker", "services/worker/handover", "services/worker/parallel"):
    sys.path.insert(0, str(Path(__file__).parents[3] / place))
