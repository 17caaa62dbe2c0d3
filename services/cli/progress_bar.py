"""Progress as a bar on a terminal, or as occasional lines in a log."""

from __future__ import annotations

import sys
from typing import TextIO

_WORDS = {"download": "downloading", "convert": "converting", "wait": "waiting for another process"}
_WIDTH = 30


class ProgressBar:
    """Called with (what, done, total), as model sources do; total 0: unknown."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._on_terminal = self._out.isatty()
        self._what = ""
        self._last_tenth = -1
        self._open_line = False

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self.close()
            self._what, self._last_tenth = what, -1
        share = min(1.0, done / total) if total > 0 else 0.0
        if self._on_terminal:
            self._draw(share, done, total)
        elif int(share * 10) > self._last_tenth:
            self._last_tenth = int(share * 10)
            self._out.write(f"{self._word()}{f' {share:.0%}' if total > 0 else ''}\n")
        self._out.flush()

    def close(self) -> None:
        """End the line that is being drawn."""
        if self._open_line:
            self._out.write("\n")
            self._out.flush()
            self._open_line = False

    def _draw(self, share: float, done: int, total: int) -> None:
        filled = "#" * round(share * _WIDTH)
        amount = f" {share:4.0%}"
        if total > 1 << 20:
            amount += f"  {done >> 20} of {total >> 20} MB"
        bar = f" [{filled:<{_WIDTH}}]{amount}" if total > 0 else " …"
        self._out.write(f"\r{self._word():<12}{bar}\x1b[K")
        self._open_line = True

    def _word(self) -> str:
        return _WORDS.get(self._what, self._what)
