"""What one check of the doctor found. A value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` says what to do, as a command wherever there is one; it is empty when all is well."""

    name: str
    level: Level
    what: str
    fix: str = ""


def ok(name: str, what: str) -> Finding:
    return Finding(name, "ok", what)


def warn(name: str, what: str, fix: str) -> Finding:
    return Finding(name, "warn", what, fix)


def bad(name: str, what: str, fix: str) -> Finding:
    return Finding(name, "bad", what, fix)
