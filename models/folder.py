"""A model's folder as Hugging Face has it: whether its files are there and can be read, by their headers. No torch."""

from __future__ import annotations

from pathlib import Path

from models.bounded_json import parsed
from models.errors import ModelError
from models.registry import FAMILIES, LACKING, WITH_IMAGES
from models.tensor_headers import file_size, read_headers
from models.torch_files.found import refuse_torch_files

TOKENIZER = "tokenizer.json"
_OTHER_TOKENIZERS = ("tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "vocab.txt", "tekken.json")
# Tokenizers of large vocabularies have 30 MB, indexes of many tensors 15.
_MAX_JSON_BYTES = 64 << 20


def check_folder(folder: Path) -> None:
    """Raise a `ModelError` that names what a Hugging Face folder lacks. Reads headers only."""
    check_config(folder)
    if is_to_be_made(folder):
        made_tokenizer(folder)
    else:
        _check_tokenizer(folder)
    for optional in ("tokenizer_config.json", "generation_config.json"):
        if (folder / optional).exists():
            read_json(folder / optional)
    for shard in weight_files(folder):
        read_headers(shard)


def _check_tokenizer(folder: Path) -> None:
    others = [name for name in _OTHER_TOKENIZERS if (folder / name).exists()]
    if others and not (folder / TOKENIZER).exists():
        raise ModelError(
            f"{folder} has no {TOKENIZER}, only {' and '.join(others)}",
            "make one with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
        )
    read_json(folder / TOKENIZER)


def check_config(folder: Path) -> None:
    refuse_torch_files(folder)
    config = read_json(folder / "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelError(f"{folder}/config.json names no architectures", "take the model's own config.json")
    if architectures[0] not in FAMILIES and architectures[0] not in WITH_IMAGES:
        lacking = LACKING.get(architectures[0])
        why = f": {lacking} isn't served" if lacking else ""
        raise ModelError(
            f"{folder}: architecture {architectures[0]} is not supported{why}", f"supported: {', '.join(FAMILIES)}"
        )


def is_to_be_made(folder: Path) -> bool:
    """Whether its tokenizer has another form than tokenizer.json, from which one is made."""
    return (folder / "tiktoken.model").exists() and not (folder / TOKENIZER).exists()


def made_tokenizer(folder: Path) -> dict[str, object]:
    """Raises `ModelError`."""
    # It brings numpy.
    from models.tiktoken_tokenizer import tokenizer_json

    about = folder / "tokenizer_config.json"
    return tokenizer_json(folder, read_json(folder / "config.json"), read_json(about) if about.exists() else {})


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: the shards its index lists, or the one file."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(_is_file_name(name) for name in names.values()) or not names:
        raise ModelError(f"{index} has no usable weight_map", "fetch the index again")
    return [folder / name for name in sorted(set(names.values()))]


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors") and name.isprintable()


def read_json(path: Path) -> dict[str, object]:
    """A JSON object of a model's folder. Raises `ModelError` that names the file."""
    try:
        size = file_size(path)
        if size > _MAX_JSON_BYTES:
            raise ModelError(f"{path} has {size >> 20} MB", f"at most {_MAX_JSON_BYTES >> 20} MB are read")
        value = parsed(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path} is missing", "fetch the folder again, whole") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}", "fetch the file again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object", "fetch the file again")
    return value
