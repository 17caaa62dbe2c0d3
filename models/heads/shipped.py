"""Heads that come with specmesh: trained/MODEL/METHOD, by the name of the model they were made for. `make heads` makes
them again."""

from __future__ import annotations

import json
from pathlib import Path

_FOLDERS = Path(__file__).parent / "trained"


def shipped_heads(model: str) -> dict[str, Path]:
    """The folders of the heads for a model that is called by its name, by method; those that draft best first."""
    names = {folder.name: folder for folder in _FOLDERS.iterdir() if folder.is_dir()} if _FOLDERS.is_dir() else {}
    folder = names.get(model.lower())
    heads = [] if folder is None else sorted(folder.iterdir(), key=_tokens_per_step, reverse=True)
    return {head.name: head for head in heads}


def _tokens_per_step(head: Path) -> float:
    return float(json.loads((head / "training.json").read_text("utf-8"))["tokens_per_step"])
