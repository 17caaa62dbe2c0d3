"""The progress of many prompts: a line on a terminal or in a notebook, and nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sized
from typing import Any, TextIO

EVERY_S = 0.2
_WIDTH = 20
# What a notebook has for standard error.
NOTEBOOK = "ipykernel.iostream"


def shown_for(prompts: Any) -> Progress | None:
    """None: nobody sees it."""
    out = sys.stderr
    if not out.isatty() and type(out).__module__ != NOTEBOOK:
        return None
    return Progress(out, len(prompts) if isinstance(prompts, Sized) else None)


class Progress:
    """Answers are added by the thread that gets them; the line is written by the caller's, as notebooks want it."""

    def __init__(self, out: TextIO, total: int | None, now: Callable[[], float] = time.monotonic) -> None:
        """`total` answers are expected; None: an unknown number."""
        self._out = out
        self._total = total
        self._now = now
        self._began = now()
        self._answers = self._tokens = self._drafted = self._accepted = 0
        self._longest = 0

    def add(self, tokens: int, acceptance: dict[str, Any]) -> None:
        self._tokens += tokens
        self._drafted += acceptance.get("num_draft_tokens", 0)
        self._accepted += acceptance.get("num_accepted_draft_tokens", 0)
        self._answers += 1

    def show(self) -> None:
        self._write("")

    def end(self) -> None:
        self._write("\n")

    def _write(self, end: str) -> None:
        line = self.line()
        # Notebooks know no command that clears the rest of a line.
        self._longest = max(self._longest, len(line))
        self._out.write(f"\r{line:<{self._longest}}{end}")
        self._out.flush()

    def line(self) -> str:
        took = max(1e-9, self._now() - self._began)
        done = f"{self._answers} answers"
        if self._total:
            share = self._answers / self._total
            done = f"[{'#' * round(share * _WIDTH):<{_WIDTH}}] {share:4.0%}  {self._answers} of {self._total}"
        accepted = f", {self._accepted / self._drafted:.0%} of drafts accepted" if self._drafted else ""
        return f"{done}, {self._tokens / took:.0f} tokens/s{accepted}"
