"""Where a head's folder comes from: a path, a hub id, or the target model's own folder. No torch."""

from __future__ import annotations

from pathlib import Path

from models.errors import ModelError
from models.heads.head import DRAFT_MODEL
from models.sources import ensure_model, fetch_from_hub, is_hub_id, weight_files
from models.tensor_headers import read_headers

OWN_FOLDER = "own"
# Parts of tensors' names that only this method's folders have; a draft model's has none of them.
MARKS: dict[str, tuple[str, ...]] = {
    # Before eagle3, whose tensors it has too.
    "block": ("mask_hidden",),
    "eagle3": (".hidden_norm.",),
    "hydra": ("hydra_mlp.",),
    "medusa": ("medusa_head.", "medusa_heads.", "blocks.0.layers.", "0.0.linear.weight"),
    "mtp": (".eh_proj.", "mtp_linear_proj.", ".mtp_layers.", "mtp.fc."),
    # After mtp, one of whose norms has a like name, and eagle3.
    "eagle": ("fc.weight",),
}


def ensure_head(method: str, name_or_path: str, target: Path, cache: Path) -> Path:
    """The head's folder, fetched if need be. Raises `ModelError`."""
    if name_or_path in ("", OWN_FOLDER):
        if method == "mtp":
            return target
        raise ModelError(f"method {method} needs a draft model", "give its folder or hub id with --draft-model")
    if method == DRAFT_MODEL:
        folder = ensure_model(name_or_path, cache)
        _check_tokenizer(folder, target)
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
        return "mtp"
    folder = _folder(name_or_path, cache)
    names = {name for file in weight_files(folder) for name in read_headers(file)}
    for method, marks in MARKS.items():
        if any(mark in name for name in names for mark in marks):
            return method
    return DRAFT_MODEL


def _folder(name_or_path: str, cache: Path) -> Path:
    folder = Path(name_or_path).expanduser()
    if not folder.is_dir() and is_hub_id(name_or_path):
        return fetch_from_hub(name_or_path, cache)
    return folder


def _check_tokenizer(folder: Path, target: Path) -> None:
    own, other = (each / "tokenizer.json" for each in (folder, target))
    if own.read_bytes() != other.read_bytes():
        raise ModelError(f"{folder} has another tokenizer than {target}", "use a draft model with the same tokenizer")
