"""Heads in Speculators' layout name the model that they were made for."""

from __future__ import annotations

from pathlib import Path

from models.errors import ModelError
from models.hub import fetch_config, is_hub_id
from models.sources import read_json

SECTION = "speculators_config"


def verifier_of(name_or_path: str, cache: Path) -> str:
    """The model of a head, a folder or hub id; "": none is named, or it is a model. Raises `ModelError`."""
    file = Path(name_or_path).expanduser() / "config.json"
    if not file.parent.is_dir():
        if not is_hub_id(name_or_path):
            return ""
        file = fetch_config(name_or_path, cache)
    section = read_json(file).get(SECTION) if file.is_file() else None
    if section is None:
        return ""
    verifier = section.get("verifier") if isinstance(section, dict) else None
    named = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    if not isinstance(named, str) or not named:
        fix = f"give --model MODEL and --draft-model {name_or_path}"
        raise ModelError(f"{file}: {SECTION} names no verifier", fix)
    return named
