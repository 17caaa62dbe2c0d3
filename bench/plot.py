"""What a benchmark saw, as a picture in docs/: one SVG file that needs nothing else, in light and in dark.

The plot itself is the load harness's (loadtest/plots.py); a page gives that its colours, a file has to bring them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.plots import STYLE, Axis, Line, plot

__all__ = ["Axis", "Line", "at", "picture", "write_picture"]


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
