"""Which linears a config leaves out: plain names, and for compressed-tensors also patterns that start with re:."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from models.errors import ModelError
from models.quantized.format import refused
from models.tensor_headers import TensorHeader

_MAX_PATTERN = 200
_MAX_NAMES = 100_000
# A pattern is foreign text. Few repeats, and none of a group, keep its matching short.
_MAX_REPEATS = 6
_REPEAT = re.compile(r"(?<!\\)(?:[*+]|\{)")
_REPEATED_GROUP = re.compile(r"(?<!\\)\)\s*[*+{]")


class Names:
    """Names of modules, whole or a run of their parts (`mlp.gate` in model.layers.0.mlp.gate), and patterns."""

    def __init__(self, names: list[str], patterns: list[re.Pattern[str]]) -> None:
        self._plain = {f".{name.strip('.')}." for name in names}
        self._longest = max((name.count(".") for name in self._plain), default=0)
        self._patterns = patterns

    def __contains__(self, name: str) -> bool:
        parts = name.split(".")
        runs = (
            f".{'.'.join(parts[first:last])}."
            for first in range(len(parts))
            for last in range(first + 1, min(first + self._longest, len(parts) + 1))
        )
        return any(run in self._plain for run in runs) or any(pattern.match(name) for pattern in self._patterns)


def names_of(fields: Mapping[str, Any], field: str, *, patterns: bool = False) -> Names:
    """The names in a list of quantization_config; null is no names."""
    value = fields.get(field)
    value = [] if value is None else value
    if not isinstance(value, list) or len(value) > _MAX_NAMES or not all(isinstance(each, str) for each in value):
        raise refused(field, value, "a list of names")
    plain = [each for each in value if not (patterns and each.startswith("re:"))]
    compiled = [_pattern(field, each) for each in value if patterns and each.startswith("re:")]
    return Names(plain, compiled)


def _pattern(field: str, text: str) -> re.Pattern[str]:
    pattern = text.removeprefix("re:")
    too_much = len(pattern) > _MAX_PATTERN or len(_REPEAT.findall(pattern)) > _MAX_REPEATS
    if too_much or _REPEATED_GROUP.search(pattern):
        raise refused(field, text, f"patterns of at most {_MAX_REPEATS} repeats, none of them of a group")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise refused(field, text, f"regular expressions; this one is broken: {error}") from error


def is_quantised(
    name: str, headers: Mapping[str, TensorHeader], by: tuple[str, ...], left_out: Names, field: str
) -> bool:
    """Whether any of a matrix's tensors `by` is there: files say it, lists are often incomplete. What a list leaves
    out and the file has quantised all the same is refused."""
    found = next((f"{name}.{each}" for each in by if f"{name}.{each}" in headers), None)
    if found is not None and name in left_out:
        raise ModelError(
            f"tensor {found} is quantised, and config.json's {field} leaves {name} out",
            "take the config.json that came with these weights",
        )
    return found is not None or (name not in left_out and f"{name}.weight" not in headers)
