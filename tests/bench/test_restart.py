"""What is told and drawn of a restart, from samples made by hand; and the picture by itself."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import restart
from bench.plot import Axis, Line, at, picture
from bench.restart import Sample

SVG = "{http://www.w3.org/2000/svg}"


def samples(begin: float, rates: list[float]) -> list[Sample]:
    """Four a second; each second has so many tokens a step, and ten steps a sample."""
    found, tokens = [Sample(begin, 0.0, 0.0)], 0.0
    for number in range(4 * len(rates)):
        tokens += 10 * rates[number // 4]
        found.append(Sample(begin + (number + 1) / 4, 10.0 * (number + 1), tokens))
    return found


def test_it_is_back_when_from_then_on_steps_bring_what_they_did() -> None:
    told = restart._told(samples(-5, [4.0] * 5), samples(0, [1, 1, 4, 4, 4, 4]))
    # Of the two seconds from 1.75 on an eighth is still poor.
    assert told["tokens_a_step_before"] == 4 and told["back_after_seconds"] == 1.75
    assert told["first_seconds_of_usual"] == 0.25


def test_one_good_moment_is_not_back() -> None:
    told = restart._told(samples(-5, [4.0] * 5), samples(0, [1, 6, 1, 1, 1, 1, 1]))
    assert told["back_after_seconds"] is None


def test_no_side_of_the_curve_knows_the_other() -> None:
    curve = restart._told(samples(-3, [4.0] * 3), samples(0, [1.0] * 3))["curve"]
    assert {rate for when, rate in curve if when < 0.1} == {4} and {rate for when, rate in curve if when > 0.1} == {1}


def test_a_picture_needs_nothing_else_and_knows_the_dark(tmp_path: Path) -> None:
    curve = [(-1.0, 4.0), (0.0, 4.0), (0.5, 1.0), (2.0, 4.0)]
    figures = {kind: {"curve": curve} for kind in restart.KINDS}
    restart._draw(tmp_path / "pictures" / "restart.svg", figures)
    text = (tmp_path / "pictures" / "restart.svg").read_text()
    drawn = ElementTree.fromstring(text)
    assert drawn.tag == f"{SVG}svg" and drawn[0].tag == f"{SVG}style" and drawn[1].get("fill") == "var(--ground)"
    assert "prefers-color-scheme: dark" in text and "href" not in text and "url(" not in text
    words = {each.text for each in drawn.iter(f"{SVG}text")}
    assert {"A proposer dies and comes back", "kill -9", "tokens a step"} <= words


def test_a_picture_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no points"):
        picture("nothing", Axis("x"), Axis("y"), [Line("none", [])])


def test_what_happened_stands_upright() -> None:
    assert at(3.0, "then", 0.0, 5.0).points == [(3.0, 0.0), (3.0, 5.0)]
