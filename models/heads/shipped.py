"""Heads that come with specmesh, by the name of the model they were made for. `make heads` makes them again."""

from __future__ import annotations

from pathlib import Path

_FOLDERS = Path(__file__).parent / "trained"


def shipped_head(model: str) -> Path | None:
    """The folder of the head for a model that is called by its name; None: there is none."""
    names = {folder.name: folder for folder in _FOLDERS.iterdir() if folder.is_dir()} if _FOLDERS.is_dir() else {}
    return names.get(model.lower())
