"""Turns rows of panels into Grafana's JSON. Knows the format of a dashboard, and no metric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "prometheus"}
# Width of a dashboard, height of a row of graphs and of a row of numbers, in Grafana's grid units.
WIDTH, HIGH, LOW = 24, 7, 4

Query = tuple[str, str]  # expression, legend


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    queries: tuple[Query, ...]
    note: str = ""
    # Why it usually has no data.
    quiet: str = ""
    stacked: bool = False

    @property
    def description(self) -> str:
        return f"{self.note} {f'It may be empty: {self.quiet}' if self.quiet else ''}".strip()


def panel(title: str, unit: str, *queries: Query, note: str = "", quiet: str = "", stacked: bool = False) -> Panel:
    return Panel(title, unit, queries, note, quiet, stacked)


@dataclass(frozen=True)
class PanelRow:
    title: str
    panels: tuple[Panel, ...]
    numbers: bool = False


def graphs(title: str, *panels: Panel) -> PanelRow:
    return PanelRow(title, panels)


def numbers(title: str, *panels: Panel) -> PanelRow:
    return PanelRow(title, panels, numbers=True)


def dashboard(name: str, title: str, rows: Iterable[PanelRow]) -> dict[str, Any]:
    # Links to the other dashboards, with the same time range.
    others = {"type": "dashboards", "title": "specmesh", "tags": ["specmesh"], "asDropdown": True, "keepTime": True}
    return {
        "uid": f"specmesh-{name}",
        "title": f"specmesh: {title}",
        "tags": ["specmesh"],
        "schemaVersion": 41,
        "version": 1,
        "editable": False,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "links": [others],
        "panels": list(_numbered(_panels(rows))),
    }


def _panels(rows: Iterable[PanelRow]) -> Iterator[dict[str, Any]]:
    y = 0
    for row in rows:
        yield {"type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": _at(0, y, WIDTH, 1)}
        y += 1
        width, height = WIDTH // len(row.panels), LOW if row.numbers else HIGH
        for index, each in enumerate(row.panels):
            yield _panel(each, row.numbers) | {"gridPos": _at(index * width, y, width, height)}
        y += height


def _numbered(panels: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return ({"id": number} | each for number, each in enumerate(panels, 1))


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: bool) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.unit == "percentunit" and number:
        defaults["max"] = 1
    if not number:
        custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 5}
        defaults["custom"] = custom | ({"stacking": {"mode": "normal"}} if panel.stacked else {})
    made = {
        "title": panel.title,
        "type": "stat" if number else "timeseries",
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expr.replace("[R]", "[$__rate_interval]"), "legendFormat": legend}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }
    return made | ({"description": panel.description} if panel.description else {})
