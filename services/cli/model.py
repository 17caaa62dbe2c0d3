"""`specmesh model`: lists, downloads, describes, checks and converts models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.api.settings import Settings, cache_dir

if TYPE_CHECKING:
    from models.check import Checked


def show_list(name: str, settings: Settings) -> int:
    from models.sources import MODEL_NAMES

    cache = cache_dir(settings)
    kept = cache / "models"
    here = {path.name for path in kept.iterdir() if (path / "config.json").is_file()} if kept.is_dir() else set()
    for known in [*MODEL_NAMES, *sorted(here - set(MODEL_NAMES))]:
        print(f"{known:<40} {'in the cache' if known in here else 'not fetched'}")
    print(f"\nThe cache is {cache}. Any Hugging Face folder, GGUF file or hub id works, too.")
    return 0


def fetch(name: str, settings: Settings) -> int:
    from models.sources import ModelError, ensure_model
    from services.cli.progress_bar import ProgressBar

    bar = ProgressBar()
    try:
        folder = ensure_model(name, cache_dir(settings), bar, settings.dtype)
    except ModelError as error:
        bar.close()
        return _tell(error.what, error.fix)
    bar.close()
    print(folder)
    return 0


def show(name: str, settings: Settings) -> int:
    """Facts from the folder's own files; nothing is fetched."""
    from models.sources import ModelError, check_folder, weight_files

    if name.lower().endswith(".gguf") and Path(name).expanduser().is_file():
        return _tell(f"{name} is a GGUF file, not a folder", f"specmesh model check {name}")
    folder = _folder_here(name, cache_dir(settings))
    if folder is None:
        return _tell(f"{name} is not here", _how_to_get(name))
    try:
        check_folder(folder)
    except ModelError as error:
        return _tell(error.what, error.fix)
    config = json.loads((folder / "config.json").read_bytes())
    _tell_facts(_facts(folder, config, weight_files(folder)))
    return 0


def _folder_here(name: str, cache: Path) -> Path | None:
    """A path, a name of the cache, or a hub id that was fetched: of its versions, the latest."""
    kept = cache / "hub" / ("models--" + name.replace("/", "--")) / "snapshots"
    # One that was looked at has its config.json alone.
    fetched = [each for each in kept.iterdir() if any(each.glob("*.safetensors"))] if kept.is_dir() else []
    versions = sorted(fetched, key=lambda each: each.stat().st_mtime)
    places = (Path(name).expanduser(), cache / "models" / name.lower(), *versions[-1:])
    return next((place for place in places if place.is_dir()), None)


def _how_to_get(name: str) -> str:
    """A command that ends well; what can't be fetched by that name is not told to be fetched."""
    from models.sources import MODEL_NAMES, is_hub_id

    if name.lower() in MODEL_NAMES or is_hub_id(name):
        return f"specmesh model fetch {name}"
    return "specmesh model list names those that are here; give one of them, a folder or a hub id (owner/name)"


def check(name: str, settings: Settings) -> int:
    """Every name, shape and type, by the headers; weights aren't loaded. Of a hub id that isn't here, config.json and
    the names of its files."""
    from models.check import check_model
    from models.sources import MODEL_NAMES, ModelError, is_hub_id, kept_as

    path = Path(name).expanduser()
    if name.lower() in MODEL_NAMES and not path.exists():
        path = cache_dir(settings) / "models" / kept_as(name.lower(), settings.dtype)
        if not path.is_dir():
            return _tell(f"{name} is not here", f"specmesh model fetch {name}")
    try:
        if path.is_file() and path.suffix.lower() == ".gguf":
            _check_gguf(path)
        elif path.is_dir():
            _tell_facts(_needs(check_model(path), settings))
        elif is_hub_id(name):
            return _check_on_hub(name, settings)
        else:
            return _tell(f"{path} is neither a folder nor a GGUF file", "give the path of a model")
    except ModelError as error:
        return _tell(error.what, error.fix)
    print(f"{path}: nothing is wrong")
    return 0


def _check_on_hub(name: str, settings: Settings) -> int:
    from models.check import check_described, check_model
    from models.hub import check_names
    from models.parameters import parameter_count

    folder = _folder_here(name, cache_dir(settings))
    if folder is not None:
        _tell_facts(_needs(check_model(folder), settings))
        print(f"{name}: nothing is wrong")
        return 0
    described = check_described(name, cache_dir(settings))
    check_names(name)
    _tell_facts([
        ("architecture", described.architecture),
        ("parameters", f"{parameter_count(described.network):,}"),
        ("format", described.format),
        ("context", f"{described.network.max_context:,} tokens"),
    ])  # fmt: skip
    print(f"{name}: nothing is wrong in config.json; its tensors can be checked once it is fetched")
    return 0


def convert(name: str, out: str, settings: Settings) -> int:
    from models.errors import ModelError
    from services.cli.convert import convert as convert_files

    try:
        convert_files(name, out, settings)
    except ModelError as error:
        return _tell(error.what, error.fix)
    except OSError as error:
        return _tell(f"{name} cannot be converted: {error}", "give OUT, a folder that you may write")
    return 0


def _needs(model: Checked, settings: Settings) -> list[tuple[str, Any]]:
    """The model's properties, and the memory it takes under these settings."""
    from kernels.cpu_instructions import Instructions
    from kernels.interpreter import has_gpu
    from models.check import check_context, kv_bytes_per_token
    from models.cpu.builder import activation_dtype
    from models.memory import NUMBER_BYTES, kept_by, stacks_stay, weight_bytes
    from services.runtime.memory import BY_DEVICE, CPU_KV_MB

    context = check_context(model.network, settings.max_context)
    dtype = "bfloat16" if settings.dtype == "auto" else settings.dtype
    on_gpu = has_gpu() and settings.executor in ("auto", "triton")
    use = Instructions(tiles=settings.amx, bfloat16=settings.determinism != "portable")
    number = NUMBER_BYTES[dtype] if on_gpu else activation_dtype(dtype, use).itemsize
    per_token = kv_bytes_per_token(model.network, 1 if settings.kv_cache_dtype == "fp8" else number)
    coded = not on_gpu and stacks_stay("plain" if settings.executor == "plain" else "compiled", dtype)
    kept = kept_by(model.network, model.headers, dtype, codes_stay=on_gpu, stacks_stay=coded)
    weights = weight_bytes(model.network, kept)
    setting = CPU_KV_MB if settings.kv_cache_mb == BY_DEVICE and not on_gpu else max(0, settings.kv_cache_mb)
    pages = setting << 20
    room = f"kv_cache_mb {setting:,} holds {pages // per_token:,} tokens" if pages else "what is free"
    return [
        ("architecture", model.architecture),
        ("parameters", f"{model.parameters:,}"),
        ("format", model.format),
        ("stored", f"{model.stored_bytes / 1e6:,.0f} MB in {model.files} file{'s' if model.files != 1 else ''}"),
        ("context", f"{context:,} tokens"),
        ("KV cache", f"{per_token:,} bytes a token; {room}"),
        ("memory", f"about {(weights + pages) / 1e6:,.0f} MB for weights and KV cache"),
    ]


def _tell_facts(facts: list[tuple[str, Any]]) -> None:
    for label, value in facts:
        print(f"{label:<14} {value}")


def _check_gguf(path: Path) -> None:
    from models.gguf import GgufError, GgufFile
    from models.sources import ModelError

    try:
        GgufFile(path)
    except GgufError as error:
        raise ModelError(str(error), "fetch the file again") from error


def _facts(folder: Path, config: dict[str, Any], weights: list[Path]) -> list[tuple[str, Any]]:
    size = sum(file.stat().st_size for file in weights)
    template = (folder / "chat_template.jinja").is_file() or '"chat_template"' in _text(
        folder / "tokenizer_config.json"
    )
    return [
        ("folder", folder),
        ("architecture", ", ".join(config.get("architectures") or ["?"])),
        ("layers", config.get("num_hidden_layers", "?")),
        ("hidden size", config.get("hidden_size", "?")),
        ("vocabulary", config.get("vocab_size", "?")),
        ("context", config.get("max_position_embeddings", "?")),
        ("weights", f"{size / 1e6:,.0f} MB in {len(weights)} file{'s' if len(weights) != 1 else ''}"),
        ("chat template", "yes" if template else "no: completions only"),
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _tell(what: str, fix: str) -> int:
    print(f"specmesh: {what}\n  fix: {fix}", file=sys.stderr)
    return 1


ACTIONS: dict[str, Callable[[str, Settings], int]] = {
    "list": show_list,
    "fetch": fetch,
    "show": show,
    "check": check,
}
