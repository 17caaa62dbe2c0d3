"""Cuts long texts into parts. Knows neither tokens nor files."""

from __future__ import annotations

from collections.abc import Iterator


def pieces(text: str, longest: int) -> Iterator[str]:
    """The text in parts of at most `longest` characters, cut behind a line where there is one in the second half."""
    start = 0
    while start < len(text):
        end = start + longest
        if end < len(text):
            line = text.rfind("\n", start + longest // 2, end)
            end = line + 1 if line >= 0 else end
        yield text[start:end]
        start = end
