"""What compose.yaml promises about every service, read from the file; test_compose.py runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.api.settings import ROLES

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_there_is_a_service_for_each_role() -> None:
    assert set(ROLES) <= set(SERVICES)
    for role in ROLES:
        assert SERVICES[role]["command"] == ["run", role]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_write_little_and_gain_nothing(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged") and "cap_add" not in service and "network_mode" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_alone(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"model"}))
def test_a_service_that_stays_tells_whether_it_is_healthy(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]


def test_roles_read_the_models_and_only_the_fetch_writes_them() -> None:
    for role in ROLES:
        assert "models:/models:ro" in SERVICES[role]["volumes"]
    assert SERVICES["model"]["volumes"] == ["models:/models"]
    # Compiled code is read back and run, and what was learned is somebody's text: nobody else may write or read it.
    for volume, owner in (("compiled", "worker"), ("compiled-proposer", "proposer"), ("learned", "proposer")):
        mounts = {name: service.get("volumes", []) for name, service in SERVICES.items()}
        assert [name for name, each in mounts.items() if any(one.startswith(f"{volume}:") for one in each)] == [owner]
    assert "outside" not in SERVICES["worker"]["networks"]


def test_foreign_images_are_pinned() -> None:
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])


def test_order_is_gated_by_health_and_never_by_the_proposers() -> None:
    assert SERVICES["tokenizer"]["depends_on"] == {"model": {"condition": "service_completed_successfully"}}
    gates = {name: gate["condition"] for name, gate in SERVICES["streamer"]["depends_on"].items()}
    assert gates == {"tokenizer": "service_healthy", "worker": "service_healthy", "proposer": "service_started"}


def test_prometheus_scrapes_each_role_where_it_serves_metrics() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    scraped = {each["labels"]["role"]: each["targets"] for each in jobs["specmesh"]["static_configs"]}
    served = {role: [f"{role}:{SERVICES[role]['environment']['SPECMESH_METRICS_PORT']}"] for role in ROLES}
    assert scraped == served


def test_a_drain_ends_before_the_container_is_killed() -> None:
    from services.api.settings import SETTINGS

    drain = next(row.default for row in SETTINGS if row.name == "drain_timeout")
    for role in ROLES:
        assert int(SERVICES[role]["stop_grace_period"].removesuffix("s")) > drain
