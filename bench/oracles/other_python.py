"""Programs of another Python, one that has vLLM."""

from __future__ import annotations

import os
from pathlib import Path


def environment(python: str) -> dict[str, str]:
    """vLLM asks for Intel's OpenMP, which its CPU wheel brings along, wherever it drafts."""
    library = Path(python).parents[1] / "lib" / "libiomp5.so"
    return os.environ | ({"LD_PRELOAD": str(library)} if library.is_file() else {})
