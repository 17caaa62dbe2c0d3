"""Where a head's folder comes from: a path, a hub id, or the target model's own folder. No torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from models.config import read_network
from models.errors import ModelError
from models.heads.table import DRAFT_MODEL, HEADS, TRAINED, kind_of
from models.heads.twins import twins_of
from models.sources import ensure_model, fetch_from_hub, is_hub_id, weight_files
from models.tensor_headers import read_headers
from models.torch_files.found import refuse_torch_files, to_type

OWN_FOLDER = "own"
# A tensor that whole models have and heads don't.
OF_A_MODEL = "model.layers.0.input_layernorm.weight"


def ensure_head(method: str, name_or_path: str, target: Path, cache: Path) -> Path:
    """The head's folder, fetched if need be. Raises `ModelError`."""
    if name_or_path in ("", OWN_FOLDER):
        if HEADS[method].with_model:
            return target
        what = "a smaller model with the same tokenizer" if method == DRAFT_MODEL else "a head"
        raise ModelError(f"method {method} drafts with {what}, and none is given", where_from(method))
    if method == DRAFT_MODEL:
        given = Path(name_or_path).expanduser()
        if given.is_dir():
            check_kind(method, _names(given), given)
        folder = ensure_model(name_or_path, cache)
        twins_of(folder, target, *(read_network(each).vocab_size for each in (folder, target)))
        return folder
    folder = _folder(name_or_path, cache)
    if not (folder / "config.json").is_file() or not all(file.is_file() for file in weight_files(folder)):
        raise ModelError(
            f"{name_or_path} holds no head: config.json and safetensors files",
            "give --draft-model a folder that has both, or a hub id; --method auto needs neither",
        )
    return folder


def method_of(name_or_path: str, cache: Path) -> str:
    """The method of a head's folder, by the names of its tensors. Raises `ModelError`."""
    if name_or_path == OWN_FOLDER:
        return next(row.name for row in HEADS.values() if row.with_model)
    return kind_of(_names(_folder(name_or_path, cache))) or DRAFT_MODEL


def check_kind(method: str, names: Collection[str], folder: Path) -> None:
    """Raises `ModelError` with what to write, if the folder holds something else than the method drafts with."""
    is_model = OF_A_MODEL in names
    held = kind_of(names)
    if held == method or (method == DRAFT_MODEL and is_model):
        return
    if held:
        fix = where_from(method, f"--method {held} with this folder, ")
        raise ModelError(f"{folder} holds a head of method {held}", fix)
    if is_model:
        raise ModelError(f"{folder} is a model, and holds no head of method {method}", where_from(method))


def where_from(method: str, before: str = "") -> str:
    """What to write instead, and how one comes by what the method drafts with."""
    made = f"make one with specmesh train-drafter --head {method} --own-prompts 2000 --out FOLDER, "
    return (
        f"write {before}--method auto without --draft-model, {made if method in TRAINED else ''}"
        "or give --draft-model a folder or hub id"
    )


def _names(folder: Path) -> set[str]:
    return {name for file in weight_files(folder) if file.is_file() for name in read_headers(file)}


def _folder(name_or_path: str, cache: Path) -> Path:
    folder = Path(name_or_path).expanduser()
    if not folder.is_dir() and is_hub_id(name_or_path):
        folder = fetch_from_hub(name_or_path, cache)
        if not any(folder.glob("*.safetensors")):
            # Others aren't fetched.
            fix = f"if its weights are a .bin file, type {to_type(name_or_path)}"
            raise ModelError(f"{name_or_path} has no safetensors files", fix)
    refuse_torch_files(folder)
    return folder
