"""Section of docs/results.md about two commits side by side."""

from __future__ import annotations

from typing import Any

from bench.rows import Row
from bench.section import Section, covering, number, source, table

Figures = dict[str, Any]
HEAD = ["cell", "pairs", "old, tokens/s", "new, tokens/s", "new / old", "from", "to", "texts that differ"]


def compare(own: dict[str, list[Row]]) -> Section | None:
    """Of each older commit the newest comparison with it."""
    rows = own.get("compare", [])
    shown = covering(rows, lambda figures: {figures["old"]} if figures.get("cells") else set())
    if not shown:
        return None
    section = Section("Against an older commit")
    section.say(
        "The same requests to both, in turns, in one run: the ratio of tokens a second, new / old, with the interval "
        "that holds 95 %. Cells named mesh have the mock engine; the time to the first token is shown as first tokens "
        "a second."
    )
    for row in shown:
        figures = row["figures"]
        lines = [[name, *_cell(seen)] for name, seen in figures["cells"].items()]
        wholes = [
            [said, *([number(None)] * 3), *_ratio(figures[name]), number(None)]
            for name, said in (("mean", "mean of all cells"), ("worst", "worst cell"))
            if name in figures
        ]
        title = f"Old: commit `{figures['old']}`, answers of at most {figures['tokens']} tokens."
        section.say(title, table(HEAD, [*lines, *wholes]), source("compare", row, rows))
    return section


def _cell(seen: Figures) -> list[str]:
    rates = [number(seen.get(side)) for side in ("old", "new")]
    ratio = _ratio(seen) if "mean" in seen else [number(None)] * 3
    return [str(seen["pairs"]), *rates, *ratio, str(seen["differ"])]


def _ratio(seen: Figures, middle: str = "mean") -> list[str]:
    return [f"{seen[name]:.3f}" for name in (middle, "low", "high")]


def never_slower(own: dict[str, list[Row]]) -> Section | None:
    """Of each set of cells the newest row."""
    rows = own.get("never_slower", [])
    shown = covering(rows, lambda figures: {(figures["dtype"], name) for name in figures.get("cells", ())})
    if not shown:
        return None
    section = Section("Law 4: auto against no speculation")
    section.say(
        "The same requests with and without speculation, in turns, cold: the ratio of tokens per second, auto / off, "
        "with its 95 % interval."
    )
    head = ["requests, streams", "off, tokens/s", "auto, tokens/s", "auto / off", "from", "to", "texts that differ"]
    for row in shown:
        lines = [
            [name, number(seen["off"]), number(seen["auto"]), *_ratio(seen, "ratio"), str(seen["differ"])]
            for name, seen in row["figures"]["cells"].items()
            if seen["high"] is not None
        ]
        section.say(table(head, lines), source("never_slower", row, rows))
    return section


COMPARE = (never_slower, compare)
