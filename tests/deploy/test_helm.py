"""The Helm chart, rendered by Helm's own library: with its default values it makes the objects of deploy/kubernetes."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_schema import problems_of

from services.api.settings import PREFIX, load_settings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "specmesh"
BASE, GPU = (ROOT / "deploy" / "kubernetes" / name for name in ("base", "gpu"))
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("helm_python") is None,
    reason="needs helm-python-sdk 0.2.2 (75 MB), which make doesn't install",
)
# In a process of its own: Helm is in Go, whose threads don't end.
RENDER = """
import json, sys
import helm_python as helm
asked = json.load(sys.stdin)
with helm.Chart.load(asked["chart"]) as chart:
    told = {"lint": helm.lint(asked["chart"], strict=True)}
    for name, (values, release, namespace) in asked["cases"].items():
        try:
            told[name] = "---\\n".join(chart.render(values, name=release, namespace=namespace).values())
        except helm.HelmValuesError as error:
            told[name] = str(error)
json.dump(told, sys.stdout)
"""
OWN = {
    "settings": {"store_tokens": 100_000_000, "vllm_metric_names": True, "draft_deadline_ms": 2.5, "audit_share": 0},
    "image": {"repository": "registry.example.com/specmesh", "tag": "1.2"}, "allowedHosts": ["chat.example.com"],
    "keysSecret": "mine", "apiKeysSecret": "theirs", "networkPolicy": False, "worker": {"replicas": 0},
    "proposer": {"storage": "9Gi"},
}  # fmt: skip
CASES = {
    "default": ({}, "specmesh", "specmesh"),
    "gpu": (yaml.safe_load((CHART / "values-gpu.yaml").read_text()), "specmesh", "specmesh"),
    "own": (OWN, "chat", "llm"),
    "misspelled": ({"wroker": {"replicas": 2}}, "specmesh", "specmesh"),
    "capitals": ({"settings": {"SPECMESH_MODEL": "m"}}, "specmesh", "specmesh"),
    "words": ({"worker": {"replicas": "two"}}, "specmesh", "specmesh"),
}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    asked = json.dumps({"chart": str(CHART), "cases": CASES})
    return dict(json.loads(subprocess.check_output([sys.executable, "-c", RENDER], input=asked, text=True)))


def objects(text: str) -> dict[str, dict[str, Any]]:
    found = [each for each in yaml.safe_load_all(text) if each]
    named = {f"{each['kind']} {each['metadata']['name']}": each for each in found}
    assert len(named) == len(found)
    return named


def of_base() -> dict[str, dict[str, Any]]:
    files = (file.read_text() for file in sorted(BASE.glob("*.yaml")) if file.stem != "kustomization")
    found = objects("---\n".join(files))
    del found["Namespace specmesh"]  # Helm makes it: --create-namespace
    return found


def test_helm_finds_nothing_wrong(told: dict[str, Any]) -> None:
    assert told["lint"]["errors"] == []
    assert [each["error"] for each in told["lint"]["messages"]] == ["icon is recommended"]


def test_with_default_values_it_makes_the_objects_of_the_manifests(told: dict[str, Any]) -> None:
    assert objects(told["default"]) == of_base()


def test_with_the_values_for_gpus_it_makes_those_of_the_gpu_variant(told: dict[str, Any]) -> None:
    expected = yaml.safe_load(json.dumps(of_base()).replace('"specmesh:latest"', '"specmesh-gpu:latest"'))
    patch = yaml.safe_load((GPU / "worker.yaml").read_text())["spec"]
    worker = expected["Deployment specmesh-worker"]["spec"]
    (ours,), (theirs,) = (spec["template"]["spec"]["containers"] for spec in (worker, patch))
    ours["env"] += theirs["env"]
    ours["resources"] = theirs["resources"]
    worker["strategy"] = patch["strategy"]
    worker["template"]["spec"]["tolerations"] = patch["template"]["spec"]["tolerations"]
    assert objects(told["gpu"]) == expected


def test_values_of_ones_own_are_in_every_object_they_are_for(told: dict[str, Any]) -> None:
    found = objects(told["own"])
    assert {each["metadata"]["namespace"] for each in found.values()} == {"llm"}
    assert not any(key.startswith("NetworkPolicy") for key in found)
    settings = copy.deepcopy(found["ConfigMap chat"]["data"])
    assert settings.pop("SPECMESH_ALLOWED_HOSTS") == "chat.llm.svc,chat.llm.svc.cluster.local,chat.example.com"
    assert settings["SPECMESH_DIRECTORY"] == "tcp://chat-directory:7000"
    assert all(name.startswith(PREFIX) for name in settings)
    taken = load_settings({}, settings)
    assert {name: getattr(taken, name) for name in OWN["settings"]} == OWN["settings"]
    assert found["Deployment chat-worker"]["spec"]["replicas"] == 0
    pods = [each["spec"]["template"]["spec"] for each in found.values() if "template" in each.get("spec", {})]
    containers = [each for pod in pods for each in pod["initContainers"] + pod["containers"]]
    assert {each["image"] for each in containers} == {"registry.example.com/specmesh:1.2"}
    assert "SPECMESH_AUDIT_SHARE" not in {each["name"] for one in containers for each in one.get("env", [])}
    secrets = {volume["secret"]["secretName"] for pod in pods for volume in pod["volumes"] if "secret" in volume}
    assert secrets == {"mine", "theirs"}
    (claim,) = found["StatefulSet chat-proposer"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "9Gi"
    # Whatever chooses pods chooses those of this release.
    assert "app: specmesh" not in told["own"]


@pytest.mark.parametrize("case", ["default", "gpu", "own"])
def test_an_object_has_the_fields_it_needs_and_no_unknown_ones(told: dict[str, Any], case: str) -> None:
    assert [problem for each in objects(told[case]).values() for problem in problems_of(each)] == []


@pytest.mark.parametrize(
    ("case", "names"), [("misspelled", "wroker"), ("capitals", "SPECMESH_MODEL"), ("words", "/worker/replicas")]
)
def test_values_that_nothing_reads_are_refused(told: dict[str, Any], case: str, names: str) -> None:
    assert "the schema" in told[case]
    assert names in told[case]
