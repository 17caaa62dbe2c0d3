"""Plots as SVG: places, ticks, what is left out."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, PlotLine, plot

NUMBERS = st.floats(-1e9, 1e9, allow_nan=False).filter(lambda each: abs(each) > 1e-6 or each == 0)


def paths(svg: str) -> list[list[tuple[float, float]]]:
    """The lines drawn, without grid and legend."""
    found = []
    for path in ElementTree.fromstring(svg).iter("path"):
        if path.get("fill") == "none" and "L" in path.get("d", ""):
            numbers = [float(each) for each in re.findall(r"-?[0-9.]+", path.get("d", ""))]
            found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def test_the_ends_of_a_line_lie_at_the_ends_of_the_axes() -> None:
    svg = plot("T", Axis("x"), Axis("y"), [PlotLine("a", [(0, 10), (1, 20), (2, 30)])])
    (line,) = paths(svg)
    assert line[0] == (LEFT, HEIGHT - BOTTOM) and line[-1] == (WIDTH - RIGHT, TOP)
    assert line[1] == ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios_and_no_place_for_zero() -> None:
    svg = plot("T", Axis("x", log=True), Axis("y"), [PlotLine("a", [(0, 5), (1, 0), (10, 1), (100, 2)])])
    (line,) = paths(svg)
    assert len(line) == 3 and abs((line[1][0] - line[0][0]) - (line[2][0] - line[1][0])) < 0.2


def test_lines_have_names_colours_and_dashes_of_their_own() -> None:
    lines = [PlotLine(f"line <{number}>", [(0, number), (1, number)]) for number in range(8)]
    svg = plot("T & T", Axis("x"), Axis("y"), lines)
    root = ElementTree.fromstring(svg)
    drawn = [each for each in root.iter("path") if each.get("fill") == "none" and "L" in each.get("d", "")]
    assert len({(each.get("stroke"), each.get("stroke-dasharray")) for each in drawn}) == 8
    assert "line <7>" in [each.text for each in root.iter("text")] and root.get("aria-label") == "T & T"


def test_a_level_and_a_band_are_within_the_plane() -> None:
    svg = plot("T", Axis("x"), Axis("y"), [PlotLine("a", [(1, 2), (2, 3)], band=[(1, 1.5, 9), (2, 2, 3)])], level=1.0)
    band = next(each for each in ElementTree.fromstring(svg).iter("path") if each.get("opacity"))
    heights = [float(each.split()[1]) for each in band.get("d", "M").strip("MZ").split("L")]
    assert min(heights) == TOP and max(heights) <= HEIGHT - BOTTOM


def test_nothing_to_show_is_said() -> None:
    assert "nothing to show" in plot("T", Axis("x"), Axis("y"), [PlotLine("a", [])])
    assert "nothing to show" in plot("T", Axis("x", log=True), Axis("y"), [PlotLine("a", [(0, 1)])])


@settings(deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_whatever_is_drawn_is_xml_within_its_plane(points: list[tuple[float, float]], log_x: bool, log_y: bool) -> None:
    svg = plot("T", Axis("x", log=log_x), Axis("y", log=log_y), [PlotLine("a", points, marks=True)])
    for line in paths(svg):
        assert all(LEFT - 1 <= x <= WIDTH - RIGHT + 1 and TOP - 1 <= y <= HEIGHT - BOTTOM + 1 for x, y in line)
