"""What deploy/vllm/compose.yaml promises, read from the file. To run it takes a GPU and vLLM's image."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import yaml

from services.api.settings import PREFIX, load_settings
from specmesh.vllm.options import Options

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy" / "vllm" / "compose.yaml").read_text())
PROPOSER: dict[str, Any] = COMPOSE["services"]["proposer"]
VLLM: dict[str, Any] = COMPOSE["services"]["vllm"]
OF_THE_MESH = yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_the_drafter_looks_for_its_proposer_where_that_listens() -> None:
    # The image says where run_dir is.
    assert "SPECMESH_RUN_DIR=/run/specmesh" in (ROOT / "Dockerfile").read_text()
    settings = load_settings({}, PROPOSER["environment"] | {f"{PREFIX}RUN_DIR": "/run/specmesh"})
    assert settings.host_directory and not settings.bind
    address = Options.of(VLLM["environment"]).address
    assert address == f"ipc:///run/specmesh/{settings.instance}.sock"
    assert "sockets:/run/specmesh" in PROPOSER["volumes"] and "sockets:/run/specmesh" in VLLM["volumes"]
    assert COMPOSE["volumes"]["sockets"] == OF_THE_MESH["volumes"]["sockets"]


def test_vllm_is_told_a_class_that_there_is() -> None:
    config = json.loads(VLLM["command"][VLLM["command"].index("--speculative-config") + 1])
    module, _, name = config["model"].rpartition(".")
    assert config["method"] == "custom_class" and callable(getattr(importlib.import_module(module), name).propose)
    assert "pip install --no-deps" in VLLM["build"]["dockerfile_inline"]


def test_the_proposer_is_as_confined_as_the_meshs_and_on_no_network() -> None:
    usual = OF_THE_MESH["services"]["proposer"]
    limits = ("pids_limit", "mem_limit", "memswap_limit", "tmpfs")
    for key in ("read_only", "cap_drop", "security_opt", "command", *limits):
        assert PROPOSER[key] == usual[key], key
    assert PROPOSER["network_mode"] == "none" and "ports" not in PROPOSER
    assert PROPOSER["healthcheck"]["test"]
    assert all(port.startswith("127.0.0.1:") for port in VLLM["ports"])


def test_what_was_learned_is_read_by_the_proposer_alone_and_stays() -> None:
    mounts = {name: service["volumes"] for name, service in COMPOSE["services"].items()}
    assert [name for name, each in mounts.items() if "learned:/var/lib/specmesh" in each] == ["proposer"]
    assert PROPOSER["environment"]["SPECMESH_STORE_DIR"] == "/var/lib/specmesh" and "learned" in COMPOSE["volumes"]


def test_neither_waits_until_the_other_is_well() -> None:
    assert VLLM["depends_on"] == {"proposer": {"condition": "service_started"}}
