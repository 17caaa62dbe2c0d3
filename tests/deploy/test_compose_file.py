"""What compose.yaml promises about every service, read from the file; test_compose.py runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.api.settings import ROLES, SETTINGS
from services.runtime.memory import CPU_KV_MB

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ON_GPU: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text())["services"]


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


def default(text: str) -> str:
    """What compose writes for ${NAME:-default} when NAME isn't set."""
    found = re.fullmatch(r"\$\{[A-Z_]+:-(.*)\}", text)
    assert found, f"{text} has no variable"
    return found[1]


def test_every_image_is_named_by_its_digest_and_may_be_another() -> None:
    digest = r":[a-z0-9.-]*\d[a-z0-9.-]*@sha256:[0-9a-f]{64}"
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(rf"[a-z]+/[a-z]+{digest}", default(SERVICES[name]["image"]))
    base = default(SERVICES["model"]["build"]["args"]["BASE_IMAGE"])
    assert re.fullmatch(rf"debian{digest}", base)
    assert f"ARG BASE_IMAGE={base}\n" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_a_bound_on_memory_and_processes(name: str) -> None:
    service = SERVICES[name]
    limit = default(service["mem_limit"])
    # More than that would be swap.
    assert service["memswap_limit"] == service["mem_limit"]
    tmpfs = sum(int(size) for size in re.findall(r"size=(\d+)m", str(service.get("tmpfs", ""))))
    assert int(limit.removesuffix("g")) * 1024 >= 2 * tmpfs
    assert 0 < service["pids_limit"] <= 512


def test_the_workers_limit_leaves_room_for_its_pages() -> None:
    assert int(default(SERVICES["worker"]["mem_limit"]).removesuffix("g")) * 1024 >= 2 * CPU_KV_MB


def test_no_health_port_is_on_the_network_outside() -> None:
    for role in ROLES:
        host, networks = SERVICES[role]["environment"]["SPECMESH_METRICS_HOST"], SERVICES[role]["networks"]
        if "outside" not in networks:
            continue
        # A name of this service that only the network inside knows.
        assert host in networks["inside"]["aliases"]
        assert host not in (networks["outside"] or {}).get("aliases", [])
        assert host not in SERVICES
    assert 'os.environ["SPECMESH_METRICS_HOST"]' in SERVICES["streamer"]["healthcheck"]["test"][-1]


def test_only_the_streamer_is_given_api_keys() -> None:
    assert COMPOSE["secrets"] == {"api_keys": {"file": "${API_KEYS_FILE:-/dev/null}"}}
    assert [name for name, service in SERVICES.items() if service.get("secrets")] == ["streamer"]
    given = SERVICES["streamer"]["environment"]["SPECMESH_API_KEYS_FILE"]
    # Not set without the variable: a file without keys ends the start.
    assert given == "${API_KEYS_FILE:+/run/secrets/api_keys}"
    for name in ("model", "tokenizer", "proposer", "worker"):
        environment = SERVICES[name]["environment"]
        # Stronger than specmesh.env, and an empty value counts as not set.
        assert environment["SPECMESH_API_KEYS"] == environment["SPECMESH_API_KEYS_FILE"] == ""


def test_order_is_gated_by_health_and_never_by_the_proposers() -> None:
    assert SERVICES["tokenizer"]["depends_on"] == {"model": {"condition": "service_completed_successfully"}}
    gates = {name: gate["condition"] for name, gate in SERVICES["streamer"]["depends_on"].items()}
    assert gates == {"tokenizer": "service_healthy", "worker": "service_healthy", "proposer": "service_started"}


def test_prometheus_scrapes_each_role_where_it_serves_metrics() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    scraped = {each["labels"]["role"]: each["targets"] for each in jobs["specmesh"]["static_configs"]}
    # Of these there may be several: every address of the service's name is one.
    several = {each["names"][0]: each for each in jobs["specmesh"]["dns_sd_configs"]}
    assert several.keys() == {"proposer", "worker"}
    assert all(each["type"] == "A" for each in several.values())
    assert not any("SPECMESH_INSTANCE" in SERVICES[role]["environment"] for role in several), "or they fence each other"
    scraped |= {role: [f"{role}:{each['port']}"] for role, each in several.items()}
    environments = {role: SERVICES[role]["environment"] for role in ROLES}
    hosts = {role: each["SPECMESH_METRICS_HOST"].replace("0.0.0.0", role) for role, each in environments.items()}
    assert scraped == {role: [f"{hosts[role]}:{environments[role]['SPECMESH_METRICS_PORT']}"] for role in ROLES}


def test_a_drain_ends_before_the_container_is_killed() -> None:
    drain = next(row.default for row in SETTINGS if row.name == "drain_timeout")
    for role in ROLES:
        assert int(SERVICES[role]["stop_grace_period"].removesuffix("s")) > drain


def test_what_triton_compiles_lies_on_a_volume_of_the_worker_alone() -> None:
    """/tmp is a tmpfs, which engines mount noexec, and the root file system is read-only."""
    assert all("exec" not in str(service.get("tmpfs")) for service in SERVICES.values())
    cache = ON_GPU["worker"]["environment"]["TRITON_CACHE_DIR"]
    mounts = [mount for mount in SERVICES["worker"]["volumes"] if cache.startswith(mount.split(":")[1] + "/")]
    assert mounts == ["compiled:/var/cache/specmesh"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"TRITON_CACHE_DIR={cache} " in dockerfile
    assert "install -d -o specmesh -g specmesh -m 0755 /models /var/cache/specmesh" in dockerfile
    assert "noexec" not in str(COMPOSE["volumes"])


def test_the_image_for_a_gpu_has_a_compiler_and_torch_for_cuda() -> None:
    assert ON_GPU["model"]["build"]["args"]["GPU"] == "1"
    build, final = (ROOT / "Dockerfile").read_text().split("FROM base\n")
    assert "ARG GPU=" in build and "ARG GPU=" in final
    assert "gcc libc6-dev python3-dev" in final
