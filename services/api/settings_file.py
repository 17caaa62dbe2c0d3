"""Reads a settings file: TOML, or YAML where its name ends so. What is wrong is said with the command that helps.

Knows neither settings nor their names.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

YAML = (".yaml", ".yml")
LARGEST = 1 << 20  # bytes
# Of lists and mappings within each other in YAML: what PyYAML takes grows with the square of it.
DEEPEST = 32
_LIKE_YAML = re.compile(r"^[\w-]+:(\s|$)", re.MULTILINE)
_LIKE_TOML = re.compile(r"^[\w-]+\s*=", re.MULTILINE)


class FileError(ValueError):
    """What is wrong, and the fix."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}\n  fix: {fix}")


def read_file(path: Path) -> dict[str, Any]:
    """Keys and values as they are written. Raises FileError."""
    text = _text(path)
    found = _yaml(path, text) if path.suffix.lower() in YAML else _toml(path, text)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise FileError(f"file {path}: holds no names with values", "write lines such as max-sequences: 8")
    return found


def _text(path: Path) -> str:
    quoted = shlex.quote(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        what = f"file {path}: cannot be read ({error.strerror})"
        if isinstance(error, IsADirectoryError):
            raise FileError(what, f"name the file in it: --config {quoted}/config.toml") from None
        if isinstance(error, PermissionError):
            raise FileError(what, f"chmod u+r {quoted}") from None
        raise FileError(what, f"make it: touch {quoted}; or leave --config and SPECMESH_CONFIG out") from None
    if len(data) > LARGEST:
        raise FileError(f"file {path}: has more than {LARGEST >> 20} MiB", "name a settings file with --config")
    try:
        return data.decode("utf-8-sig")
    except ValueError:
        raise FileError(f"file {path}: is not UTF-8 text", "name a settings file with --config") from None


def _toml(path: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"file {path}: is not TOML ({error})"
    if _LIKE_YAML.search(text) and not _LIKE_TOML.search(text):
        new = path.with_suffix(".yaml")
        fix = f"it looks like YAML: mv {shlex.quote(str(path))} {shlex.quote(str(new))}, and --config {new}"
        raise FileError(what, fix)
    raise FileError(what, 'correct that line: NAME = VALUE, with text in quotes, such as method = "suffix"')


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        fix = "pip install pyyaml, or write the settings as TOML: NAME = VALUE in a file that ends with .toml"
        raise FileError(f"file {path}: PyYAML is not installed here", fix) from None

    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            # A few lines of aliases stand for more values than there is memory.
            if isinstance(event, yaml.AliasEvent):
                raise yaml.YAMLError("aliases aren't read")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise yaml.YAMLError(f"values are nested more than {DEEPEST} deep")
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = f"file {path}: is not YAML ({' '.join(str(error).split())[:200]})"
        fix = "correct that line: NAME: VALUE"
        if _LIKE_TOML.search(text) and not _LIKE_YAML.search(text):
            new = path.with_suffix(".toml")
            fix = f"it looks like TOML: mv {shlex.quote(str(path))} {shlex.quote(str(new))}, and --config {new}"
        raise FileError(what, fix) from None
