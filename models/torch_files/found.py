"""Which files of torch.save a folder has, and what is said where one is given as a model or a head."""

from __future__ import annotations

import shlex
from pathlib import Path

from models.errors import ModelError

SUFFIXES = (".bin", ".pt", ".pth")
# What training leaves beside the weights.
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")


def torch_files(folder: Path) -> list[Path]:
    """Those with weights, as far as names tell."""
    files = (each for each in folder.glob("*") if each.suffix in SUFFIXES and not each.stem.startswith(_NO_WEIGHTS))
    return sorted(each for each in files if each.is_file())


def refuse_torch_files(place: Path) -> None:
    """Raises `ModelError` with the command to type, if nothing else holds the weights of a folder or file."""
    if place.is_dir():
        found = [] if any(place.glob("*.safetensors")) else torch_files(place)[:1]
    else:
        found = [place] if place.suffix in SUFFIXES and place.is_file() else []
    if found:
        raise ModelError(
            f"{found[0]} was written by torch.save, and such files can contain code", f"type {to_type(place)}"
        )


def to_type(place: Path | str) -> str:
    return f"specmesh model convert {shlex.quote(str(place))}"
