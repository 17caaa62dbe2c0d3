"""What is said of a model that cannot be had."""

from __future__ import annotations

_LONGEST = 2000


class ModelError(Exception):
    """A model cannot be had: `what` is wrong, and the `fix` for it."""

    def __init__(self, what: str, fix: str) -> None:
        self.what, self.fix = _tidy(what), _tidy(fix)
        super().__init__(f"{self.what} ({self.fix})")


class TorchFileError(Exception):
    """A file that torch.save wrote isn't converted: what stands in it that isn't read."""


def _tidy(text: str) -> str:
    """Names and values come from files: no control characters on a terminal, and never a screenful."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "…"
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)
