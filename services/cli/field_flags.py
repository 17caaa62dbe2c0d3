"""Flags made from the rows of request fields, and what was given of them as fields of a request."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from services.api.parameters import Parameter
from services.api.sampling import PARAMETERS

ROWS = {name: row for name, row in PARAMETERS.items() if row.kind in ("integer", "number", "boolean")}
# What a number is read as.
_TYPES: dict[str, Callable[[str], float]] = {"integer": int, "number": float}


def add_fields(parser: argparse.ArgumentParser) -> None:
    """Without defaults: only what was given is sent."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    for name, row in ROWS.items():
        flag = "--" + name.replace("_", "-")
        if row.kind == "boolean":
            group.add_argument(flag, dest=name, action="store_true", default=None, help=row.help)
        else:
            group.add_argument(flag, dest=name, type=_reader(row), metavar="N", help=f"{row.help} ({row.range})")


def _reader(row: Parameter) -> Callable[[str], float]:
    def read(word: str) -> float:
        try:
            value = _TYPES[row.kind](word)
        except ValueError:
            value = float("nan")
        if row.takes(value):
            return value
        raise argparse.ArgumentTypeError(f"{word} is not in {row.range}")

    return read


def given_fields(options: argparse.Namespace) -> dict[str, Any]:
    named = ((name, getattr(options, name)) for name in ("seed", *ROWS))
    return {name: value for name, value in named if value is not None}
