"""Dashboards, rules and alerts as files: in step with what makes them, and each alert with a place to read on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
# Said by no panel and no rule, and why.
UNSEEN = {
    "specmesh:engine_info": "read when an answer differs, as docs/operate/runbook.md says",
    "specmesh:ranks": "a setting of the worker, which doesn't change while it runs",
}


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "dashboards.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def panels(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]


def test_the_dashboards_are_what_the_readable_file_makes() -> None:
    finished = check("--check")
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_panel_of_a_board_has_a_title_a_unit_and_a_place_of_its_own(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == f"specmesh-{path.stem}"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for panel in panels(path):
        assert panel["title"] and panel["fieldConfig"]["defaults"]["unit"] and panel["targets"]
        # Two lines of one name can't be told apart.
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert all(legends) and len(set(legends)) == len(legends), panel["title"]


def test_home_is_a_board_that_is_there() -> None:
    home = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["grafana"]["environment"]
    assert Path(home["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).name in {path.name for path in BOARDS}


def test_every_metric_is_on_a_board_or_in_a_rule() -> None:
    seen = "".join(path.read_text() for path in [*BOARDS, *(DEPLOY / "prometheus").glob("*s.yml")])
    told = re.findall(r"^\| `([a-z0-9_:]+)` \|", (ROOT / "docs" / "operate" / "metrics.md").read_text(), re.MULTILINE)
    assert len(told) > 80
    unseen = {name.removesuffix("_total") for name in told if not re.search(rf"{name}(?![a-z0-9:])", seen)}
    assert unseen == set(UNSEEN)


def sections() -> dict[str, str]:
    """Of the runbook: one an alert."""
    parts = re.split(r"^## (.+)\n", (ROOT / "docs" / "operate" / "runbook.md").read_text(), flags=re.MULTILINE)
    found = {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))
    del found["Symptoms"]
    return found


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_how_urgent_it_is_what_it_means_and_where_to_read_on(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert set(alert["annotations"]) == {"summary", "description", "runbook"}
    assert alert["annotations"]["runbook"] == f"docs/operate/runbook.md#{name.lower()}"
    # In italics what has happened, then what to do about it.
    assert re.fullmatch(r"\n\*[^*]+\*,? [^*]{20,}", sections()[name]), sections().get(name)


def test_the_runbook_has_no_alert_that_is_gone_and_names_those_that_wake_somebody() -> None:
    pages = [alert["alert"] for alert in ALERTS if alert["labels"]["severity"] == "page"]
    head, *others = sections().items()
    assert [name for name, _ in others] == [alert["alert"] for alert in ALERTS]
    assert re.findall(r"\[(\w+)\]\(#\w+\)", head[1]) == pages


def test_every_alert_fires_in_a_test() -> None:
    text = (DEPLOY / "prometheus" / "tests.yml").read_text()
    assert [alert["alert"] for alert in ALERTS if alert["alert"] not in text] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian's prometheus has it)")
def test_promtool_finds_configuration_rules_and_their_tests_in_order() -> None:
    for what in (["check", "config", "prometheus.yml"], ["test", "rules", "tests.yml"]):
        finished = subprocess.run(["promtool", *what], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
        assert finished.returncode == 0, finished.stdout + finished.stderr
