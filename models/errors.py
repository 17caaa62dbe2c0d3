"""What is said of a model that cannot be had."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be had: `what` is wrong, and the `fix` for it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what} ({fix})")
        self.what = what
        self.fix = fix
