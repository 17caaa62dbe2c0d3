"""Every panel and every rule asks a real Prometheus beside a real mesh under load; then a fault makes alerts fire."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))

from compose_checks import dashboard_expressions, load
from real_prometheus import RULES, Prometheus, running_prometheus, until

from bench.running_mesh import RunningMesh

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus (Debian's package has it)"),
]

# Alerts wait so long instead of minutes; what they ask is the same.
ALERTS_WAIT = "3s"
# Of these there is no series until something of the kind has happened.
QUIET_SERIES = {
    "specmesh:bus_refused_total": "no stranger has sent anything",
}
SERIES = re.compile(r"\b(?:up|process_start_time_seconds|specmesh:[a-z0-9_:]+)(?:{[^}]*})?")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningMesh, Prometheus]]:
    folder = tmp_path_factory.mktemp("seen")
    # `up` replaces a stopped process once it counts as lost, which would end the alert before it fires.
    mesh = RunningMesh(folder, {"stale_after": 600})
    try:
        mesh.wait_until_ready()
        with running_prometheus(folder / "prometheus", mesh, ALERTS_WAIT) as prometheus:
            yield mesh, prometheus
    finally:
        mesh.stop()


def rules() -> Iterator[tuple[str, str]]:
    """What is recorded; and of each alert the series it is about, as it has no data itself while all is well."""
    for group in yaml.safe_load((RULES / "rules.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["record"], rule["record"]
    for group in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            for series in SERIES.findall(rule["expr"]):
                if series.partition("{")[0] not in QUIET_SERIES:
                    yield f"{rule['alert']}: {series}", f"count({series})"


def alerts_of(group: str) -> set[str]:
    groups = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    return {rule["alert"] for each in groups if each["name"] == group for rule in each["rules"]}


def test_every_panel_and_every_rule_has_data_under_load_and_processes_are_well(
    seen: tuple[RunningMesh, Prometheus],
) -> None:
    mesh, prometheus = seen
    asked = dashboard_expressions()
    assert len(asked) > 100
    missing = {where: expression for where, expression, may_be_empty in asked if not may_be_empty} | dict(rules())
    with load(mesh.url) as failed:

        def all_answered() -> bool:
            for where, expression in list(missing.items()):
                if prometheus.query(expression):
                    del missing[where]
            return not missing

        until(all_answered, 120, lambda: "\n".join(f"{where}: {what}" for where, what in missing.items()))
        for _, expression, _ in asked:
            # Those that may be empty are understood, at least.
            prometheus.query(expression)
        # Whether drafts pay on a machine this busy is no question of the mesh's health.
        assert not prometheus.alerts().keys() & alerts_of("processes")
    assert failed == []


def test_a_stopped_proposer_fires_its_alert_while_requests_are_answered_and_it_ends_when_it_is_back(
    seen: tuple[RunningMesh, Prometheus],
) -> None:
    mesh, prometheus = seen
    pid = mesh.processes()["proposer"]
    with load(mesh.url) as failed:
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: "ProposerDown" in prometheus.alerts(), 60, lambda: prometheus.alerts())
            alert = prometheus.alerts()["ProposerDown"]
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: "ProposerDown" not in prometheus.alerts(), 120, lambda: prometheus.alerts())
    assert failed == []
    assert alert["labels"]["severity"] == "ticket" and alert["labels"]["role"] == "proposer"
    assert alert["annotations"]["runbook"] == "docs/operate/runbook.md#proposerdown"
    assert f":{mesh.metrics_base + 2}" in alert["annotations"]["summary"]
