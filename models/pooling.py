"""How a folder says that hidden states become an embedding: `1_Pooling/config.json` of sentence-transformers."""

from __future__ import annotations

from pathlib import Path

from models.sources import read_json

_FILE = Path("1_Pooling", "config.json")
_PREFIX = "pooling_mode_"
_MODES = {"lasttoken": "last", "mean_tokens": "mean"}


def read_pooling(folder: Path) -> str:
    """last or mean; "" where it says nothing; else its own word for what isn't one of the two. Raises `ModelError`."""
    if not (folder / _FILE).exists():
        return ""
    told = read_json(folder / _FILE)
    modes = [name.removeprefix(_PREFIX) for name, on in told.items() if name.startswith(_PREFIX) and on is True]
    return "+".join(_MODES.get(mode, mode) for mode in modes)
