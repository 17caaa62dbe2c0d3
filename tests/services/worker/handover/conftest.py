from __future__ import annotations

import sys
from pathlib import Path

# What the tests of the worker share lies above.
sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
