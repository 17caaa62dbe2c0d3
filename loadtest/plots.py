"""Line plots as inline SVG: axes, legend, bands. Knows nothing of the data and needs no library.

Colours are CSS variables (`--line-0` ...), so the page defines light and dark. Each line also has its own dash pattern,
for colour-blind readers. Hovering over a point shows its value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 46
COLOURS = 6
DASHES = ("", "7 4", "2 3", "10 3 2 3", "4 2", "1 4")
LEGEND_LINE, LABEL_ROOM = 17, 40

Point = tuple[float, float]

STYLE = """
:root { --ground: #ffffff; --ink: #1c2430; --faint: #d5dae1;
  --line-0: #1f5fbf; --line-1: #c2410c; --line-2: #15803d; --line-3: #9333a8; --line-4: #8a6d00; --line-5: #0e7490; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181f; --ink: #e4e8ee; --faint: #39414d;
  --line-0: #7aa9ff; --line-1: #ff9a62; --line-2: #5fd18a; --line-3: #d79aeb; --line-4: #e0c24d; --line-5: #5cc8dd; } }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .title { font-weight: 600; font-size: 13px; }
"""


@dataclass(frozen=True, slots=True)
class PlotLine:
    """Points in drawing order. `band`: (x, low, high) around them. `marks`: draw a dot at each point."""

    name: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    marks: bool = False
    labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    title: str
    log: bool = False
    low: float | None = None
    high: float | None = None

    def ticks(self, low: float, high: float) -> list[float]:
        return _log_ticks(low, high) if self.log else _even_ticks(low, high)

    def place(self, value: float, low: float, high: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            value, low, high = (math.log10(max(each, low)) for each in (value, low, high))
        return (value - low) / (high - low)


def plot(title: str, x: Axis, y: Axis, lines: Sequence[PlotLine], level: float | None = None) -> str:
    """`level`: a thin horizontal line for reference. Without points, returns a sentence."""
    values = [point for line in lines for point in line.points if _fits(point, x, y)]
    if not values:
        return f"<p>{escape(title)}: nothing to show.</p>"
    highs = [high for line in lines for _, _, high in line.band]
    lows = [low for line in lines for _, low, _ in line.band]
    across = _range(x, [each for each, _ in values])
    up = _range(y, [each for _, each in values] + highs + lows + ([] if level is None else [level]))
    bottom = HEIGHT + LEGEND_LINE * ((len(lines) + 1) // 2)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {bottom}" role="img" aria-label="{escape(title)}" class="plot">',
        f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>',
        *_grid(x, y, across, up),
    ]
    if level is not None:
        at = _y(y, level, up)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="var(--ink)" stroke-width="1.2" fill="none"/>')
    for number, line in enumerate(lines):
        parts += [*_drawn(line, number, x, y, across, up), _legend(line, number)]
    return "".join([*parts, "</svg>"])


# Axes -----------------------------------------------------------------------------------------------------

Range = tuple[float, float]


def _fits(point: Point, x: Axis, y: Axis) -> bool:
    return all(math.isfinite(each) for each in point) and (point[0] > 0 or not x.log) and (point[1] > 0 or not y.log)


def _range(axis: Axis, values: Sequence[float]) -> Range:
    kept = [each for each in values if math.isfinite(each) and (each > 0 or not axis.log)]
    low = min(kept) if axis.low is None else axis.low
    high = max(kept) if axis.high is None else axis.high
    if low < high:
        return low, high
    return (low / 2, low * 2) if axis.log else (low - 0.5, low + 0.5)


def _even_ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times each power of ten; only the powers if there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if last - first <= 3 else (1,)
    found = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
    return [each for each in found if low * 0.999 <= each <= high * 1.001] or [low, high]


def _x(axis: Axis, value: float, ends: Range) -> float:
    return LEFT + axis.place(value, *ends) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float, ends: Range) -> float:
    return HEIGHT - BOTTOM - axis.place(value, *ends) * (HEIGHT - BOTTOM - TOP)


def _grid(x: Axis, y: Axis, across: Range, up: Range) -> list[str]:
    parts = []
    for value in x.ticks(*across):
        at = _x(x, value, across)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="var(--faint)"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_number(value)}</text>')
    for value in y.ticks(*up):
        at = _y(y, value, up)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="var(--faint)"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    center, middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    upright = f'transform="rotate(-90 14 {middle})" x="14" y="{middle}"'
    parts.append(f'<text x="{center}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x.title)}</text>')
    return [*parts, f'<text {upright} text-anchor="middle">{escape(y.title)}</text>']


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# Lines ----------------------------------------------------------------------------------------------------


def _drawn(line: PlotLine, number: int, x: Axis, y: Axis, across: Range, up: Range) -> list[str]:
    colour = f"var(--line-{number % COLOURS})"
    places = [(_x(x, a, across), _y(y, b, up)) for a, b in line.points if _fits((a, b), x, y)]
    parts = []
    if len(line.band) > 1:
        over = [f"{_x(x, at, across):.1f} {_y(y, high, up):.1f}" for at, _, high in line.band]
        under = [f"{_x(x, at, across):.1f} {_y(y, low, up):.1f}" for at, low, _ in reversed(line.band)]
        parts.append(f'<path d="M{"L".join([*over, *under])}Z" fill="{colour}" opacity=".15"/>')
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" {_dash(number)}/>')
    if line.marks:
        shown = [point for point in line.points if _fits(point, x, y)]
        labels = line.labels or [""] * len(shown)
        for (a, b), point, label in zip(places, shown, labels, strict=False):
            said = escape(f"{line.name}: {_number(point[0])}, {_number(point[1])}")
            parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"><title>{said}</title></circle>')
            if label:
                # At the right edge the label goes to the left.
                side = 'text-anchor="end" dx="-6"' if a > WIDTH - RIGHT - LABEL_ROOM else 'dx="6"'
                parts.append(f'<text x="{a:.1f}" y="{b - 6:.1f}" {side}>{escape(label)}</text>')
    return parts


def _dash(number: int) -> str:
    # Lines of one colour have different dashes.
    dash = DASHES[(number + number // COLOURS) % len(DASHES)]
    return f'stroke-dasharray="{dash}"' if dash else ""


def _legend(line: PlotLine, number: int) -> str:
    """Two entries in a row, below the plot."""
    left, top = LEFT + (number % 2) * (WIDTH - LEFT) // 2, HEIGHT + (number // 2) * LEGEND_LINE + 6
    return (
        f'<path d="M{left} {top}h26" stroke="var(--line-{number % COLOURS})" stroke-width="2.5" {_dash(number)}/>'
        f'<text x="{left + 32}" y="{top + 4}">{escape(line.name)}</text>'
    )
