"""Errors that the user can fix, as commands print them."""

from __future__ import annotations

import sys

from models.errors import ModelError


def refuse(error: Exception | str) -> int:
    """Prints what is wrong and, where it is known, the fix. Returns the exit code."""
    text = f"{error.what}\n  fix: {error.fix}" if isinstance(error, ModelError) else str(error)
    print("\n".join(f"specmesh: {line}" if line[:1] != " " else line for line in text.splitlines()), file=sys.stderr)
    return 1
