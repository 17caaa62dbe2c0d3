"""What a benchmark saw, as a picture in docs/: one SVG file that needs nothing else, in light and in dark.

The plot itself is the load harness's (loadtest/plots.py); a page gives that its colours, a file has to bring them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from loadtest.plots import STYLE, Axis, Line, plot

__all__ = ["Axis", "Line", "at", "doubling", "picture", "write_picture"]


class _Doubling(Axis):
    def ticks(self, low: float, high: float) -> list[float]:
        return [2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]


def doubling(title: str, low: float | None = None, high: float | None = None) -> Axis:
    """An axis for what is measured at 1, 2, 4, 8 and so on."""
    return _Doubling(title, log=True, low=low, high=high)


def at(x: float, name: str, low: float, high: float) -> Line:
    """Something that happened: a line upright, named in the legend."""
    return Line(name, [(x, low), (x, high)])


def write_picture(path: Path, title: str, x: Axis, y: Axis, lines: Sequence[Line], level: float | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(picture(title, x, y, lines, level))


def picture(title: str, x: Axis, y: Axis, lines: Sequence[Line], level: float | None = None) -> str:
    """ValueError: there is nothing to show."""
    drawn = plot(title, x, y, lines, level)
    if not drawn.startswith("<svg "):
        raise ValueError(f"{title}: no points")
    head, rest = drawn.removeprefix("<svg ").split(">", 1)
    ground = '<rect width="100%" height="100%" fill="var(--ground)"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {head}><style>{STYLE}</style>{ground}{rest}\n'
