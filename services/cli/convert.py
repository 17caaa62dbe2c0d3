"""`specmesh model convert`: safetensors files from files of torch.save, beside them or in another folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from models.errors import ModelError
from models.sources import fetch_from_hub, is_hub_id, read_json
from models.torch_files.found import SUFFIXES, torch_files
from services.api.settings import Settings, cache_dir
from services.cli.torch_file_process import Converted, convert_file

_INDEX = "pytorch_model.bin.index.json"
_WHOLE = "pytorch_model.bin"
_NEW_INDEX = "model.safetensors.index.json"


def convert(name: str, out: str, settings: Settings) -> None:
    """`name` is a file, a folder or a hub id; `out` a folder, a file, or "": beside. Raises `ModelError`, `OSError`."""
    place = Path(name).expanduser()
    if not place.exists() and is_hub_id(name):
        place = fetch_from_hub(name, cache_dir(settings), tuple(f"*{suffix}" for suffix in SUFFIXES))
    folder = place if place.is_dir() else place.parent
    shards = _shards(place)
    target = Path(out).expanduser() if out else folder
    if target.suffix == ".safetensors":
        if len(shards) > 1:
            raise ModelError(f"{place} has {len(shards)} files with weights", "give a folder as OUT")
        target, names = target.parent, [target.name]
    else:
        names = [_new_name(shard) for shard in shards]
    made = [target / each for each in names]
    _check_free(made)
    target.mkdir(parents=True, exist_ok=True)
    try:
        for shard, file in zip(shards, made, strict=True):
            _tell(file, convert_file(shard, file))
    except BaseException:
        # Some shards alone are no model, and would stand in the way of another try.
        for file in made:
            file.unlink(missing_ok=True)
        raise
    if place.is_dir():
        _finish(place, target)


def _shards(place: Path) -> list[Path]:
    if not place.exists():
        raise ModelError(f"{place} is not here", "give a folder, a file or a hub id (owner/name)")
    if not place.is_dir():
        return [place]
    if (place / _INDEX).is_file():
        return [place / name for name in sorted(set(_weight_map(place).values()))]
    found = [place / _WHOLE] if (place / _WHOLE).is_file() else torch_files(place)
    if not found:
        raise ModelError(f"{place} has no {_WHOLE} and no other file of torch.save", "give the file itself")
    if len(found) > 1:
        told = ", ".join(each.name for each in found[:10])
        raise ModelError(f"{place} has several files of torch.save: {told}", "give one of them")
    return found


def _weight_map(folder: Path) -> dict[str, str]:
    found = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(found, dict) or not found or not all(map(_is_file_name, found.values())):
        raise ModelError(f"{folder / _INDEX} has no usable weight_map", "fetch the index again")
    return found


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name and name.endswith(SUFFIXES) and name.isprintable()


def _new_name(file: Path) -> str:
    """The name under which it is loaded: of whatever is no shard, that of the one file."""
    stem = file.stem.replace("pytorch_model", "model", 1) if file.stem.startswith("pytorch_model") else "model"
    return f"{stem}.safetensors"


def _check_free(made: list[Path]) -> None:
    if len(set(made)) < len(made):
        raise ModelError(f"two files would become {made[0].name}", "give them names as Hugging Face does")
    for file in made:
        if file.exists():
            raise ModelError(f"{file} is already there", "remove it, or give a folder as OUT")


def _finish(folder: Path, target: Path) -> None:
    """What else a folder needs to be loaded."""
    if (folder / _INDEX).is_file():
        names = {name: _new_name(Path(shard)) for name, shard in _weight_map(folder).items()}
        (target / _NEW_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}, indent=1), "utf-8")
    if not target.samefile(folder):
        for file in (*folder.glob("*.json"), *folder.glob("*.jinja")):
            if file.name != _INDEX:
                shutil.copyfile(file, target / file.name)


def _tell(file: Path, converted: Converted) -> None:
    print(f"{file}: {converted.tensors} tensors, {converted.bytes / 1e6:,.1f} MB")
    if converted.left_out:
        print(f"  left out, beside the state dict: {', '.join(converted.left_out)}")
