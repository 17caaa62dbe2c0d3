"""Models of a hub: what config.json and the names of the files tell before anything large is fetched, and the fetch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from models.cache import make_writable
from models.errors import ModelError

_FROM_HUB = ("*.json", "*.jinja", "*.safetensors", "tiktoken.model")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hub_id(name: str) -> bool:
    return bool(_HUB_ID.fullmatch(name)) and not name.startswith((".", "/", "~"))


def fetch_from_hub(name: str, cache: Path, more: tuple[str, ...] = ()) -> Path:
    """The folder of a model or of a head. `more`: patterns of files that are fetched, too. Raises `ModelError`."""
    return Path(_asked(name, "snapshot_download", cache, allow_patterns=[*_FROM_HUB, *more]))


def fetch_config(name: str, cache: Path) -> Path:
    """config.json alone."""
    return Path(_asked(name, "hf_hub_download", cache, filename="config.json"))


def check_names(name: str) -> None:
    """Whether the files that a model needs are there, by their names. Raises `ModelError`."""
    names = {str(each) for each in _asked(name, "list_repo_files", None)}
    if not any(each.endswith(".safetensors") for each in names):
        others = sorted(each for each in names if each.endswith((".gguf", ".bin", ".pt", ".pth")))
        held = f": {', '.join(others[:3])}" if others else ""
        fix = "take another repository of this model; of GGUF files fetch one, and give its path"
        raise ModelError(f"{name} has no safetensors files{held}", fix)
    if "tokenizer.json" not in names and not names.issuperset(("tiktoken.model", "tokenization_kimi.py")):
        held = ", ".join(sorted(each for each in names if "token" in each or each.endswith(".model"))[:5])
        raise ModelError(
            f"{name} has no tokenizer.json ({held or 'and no other tokenizer'})",
            "read are tokenizer.json, and tiktoken.model of Kimi's models",
        )


def _asked(name: str, function: str, cache: Path | None, **what: Any) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ModelError(
            f"{name} looks like a hub id, and huggingface_hub is not installed",
            "pip install huggingface_hub, or give a local folder",
        ) from None
    if cache is not None:
        make_writable(cache)
        what["cache_dir"] = cache / "hub"
    try:
        return getattr(huggingface_hub, function)(name, **what)
    except Exception as error:  # whatever its HTTP client raises: the reader wants one sentence
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{name} could not be fetched from the hub: {first_line}",
            "check the name, the network and HF_TOKEN, or give a local folder",
        ) from error
