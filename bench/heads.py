"""Heads for bench/acceptance.py: what each is called, and what its folder says about its training."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.heads.sources import method_of
from services.api.settings import Settings, cache_dir

MOST_BYTES = 1 << 20
MOST = 1e18
# What `specmesh train-drafter` writes; the card is read where the other isn't there.
TRAINING, CARD = "training.json", "README.md"
NUMBERS: dict[str, type] = {"answers": int, "tokens": int, "passes": int, "tokens_per_step": float}
SENTENCES = {
    "answers": r"Trained on (\d{1,18}) of the model's own answers",
    "tokens": r"answers \((\d{1,18}) tokens",
    "passes": r"(\d{1,18}) passes",
    "tokens_per_step": r"(\d{1,3}\.\d{1,9}) tokens per step",
}


class Head(NamedTuple):
    name: str
    method: str
    folder: str


def named(folders: Sequence[str]) -> list[Head]:
    """By the method, as far as that tells them apart; otherwise with the folder's name, and its parent's."""
    paths = [Path(folder).expanduser().resolve() for folder in folders]
    if missing := [folder for folder, path in zip(folders, paths, strict=True) if not path.is_dir()]:
        raise SystemExit(f"bench acceptance: no folder {', '.join(missing)}")
    cache = cache_dir(Settings.for_tests())
    return told_apart([(method_of(str(path), cache), path) for path in paths])


def told_apart(found: Sequence[tuple[str, Path]]) -> list[Head]:
    forms: tuple[Callable[[str, Path], str], ...] = (
        lambda method, path: method,
        lambda method, path: f"{method} {path.name}",
        lambda method, path: f"{method} {path.parent.name}/{path.name}",
    )
    for form in forms:
        names = [form(method, path) for method, path in found]
        if len(set(names)) == len(names):
            return [Head(name, method, str(path)) for name, (method, path) in zip(names, found, strict=True)]
    raise SystemExit(f"bench acceptance: heads of the same name: {', '.join(names)}")


def known_of(head: Head) -> dict[str, Any]:
    """`method`, and of NUMBERS what the folder says. Both files are data: what isn't a number is left out."""
    folder = Path(head.folder)
    said = _from_json(_read(folder / TRAINING)) or _from_card(_read(folder / CARD))
    return {"method": head.method} | said


def _read(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open("rb") as opened:
        return opened.read(MOST_BYTES).decode(errors="replace")


def _from_json(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {name: kind(said[name]) for name, kind in NUMBERS.items() if _is_number(said.get(name))}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST


def _from_card(text: str) -> dict[str, Any]:
    found = {name: re.search(sentence, text) for name, sentence in SENTENCES.items()}
    return {name: NUMBERS[name](match[1]) for name, match in found.items() if match}
