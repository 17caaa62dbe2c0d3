"""What the manifests of deploy/kubernetes and deploy/kuberay promise: read from the files, without a cluster. Their
environments are also those of real processes here: the roles find each other over TCP with keys."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_schema import problems_of
from watching import wait_until

from bench.running_mesh import _status, free_ports
from mesh.security import make_keys
from services.api.settings import PREFIX, ROLES, ROWS, SECRET, Settings, load_settings, metrics_port
from services.placement import ray_cluster
from services.placement.folder import secrets_for
from specmesh import rooms

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "deploy" / "kubernetes" / "base"
GPU = ROOT / "deploy" / "kubernetes" / "gpu"
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
NOT_SETTINGS = {"POD_IP", "HOME", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR"}


def documents(file: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


MANIFESTS = [each for file in sorted(BASE.glob("*.yaml")) if file.stem != "kustomization" for each in documents(file)]
RAY = documents(ROOT / "deploy" / "kuberay" / "raycluster.yaml")
WORKLOADS = {
    each["metadata"]["name"].removeprefix("specmesh-"): each
    for each in MANIFESTS
    if each["kind"] in ("Deployment", "StatefulSet")
}
CONFIG = next(each["data"] for each in MANIFESTS if each["kind"] == "ConfigMap")
PODS = {
    **{role: each["spec"]["template"] for role, each in WORKLOADS.items()},
    "ray head": RAY[0]["spec"]["headGroupSpec"]["template"],
    "ray worker": RAY[0]["spec"]["workerGroupSpecs"][0]["template"],
}


def named(each: dict[str, Any]) -> str:
    return f"{each['kind']}-{each['metadata']['name']}"


def containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def main(role: str) -> dict[str, Any]:
    (container,) = PODS[role]["spec"]["containers"]
    return dict(container)


def environment(role: str, pod_ip: str = "10.0.0.7") -> dict[str, str]:
    """What the container gets, as the kubelet makes it."""
    found = dict(CONFIG) if main(role).get("envFrom") else {}
    fields = {"status.podIP": pod_ip, "metadata.name": f"specmesh-{role}-0"}
    for each in main(role)["env"]:
        text = fields[each["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in each else each["value"]
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], text)
    return found


# Their form ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [*MANIFESTS, *RAY], ids=named)
def test_an_object_has_the_fields_it_needs_and_no_unknown_ones(document: dict[str, Any]) -> None:
    assert problems_of(document) == []


def test_a_mistake_is_found() -> None:
    broken = documents(BASE / "worker.yaml")[0]
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    del broken["spec"]["selector"]
    broken["spec"]["replicas"] = "two"
    assert problems_of(broken) == [
        "specmesh-worker.spec: no selector",
        "specmesh-worker.spec.replicas: 'two'",
        "specmesh-worker.spec.template.spec.containers[0]: unknown field readynessProbe",
    ]


def test_every_file_is_applied_and_all_objects_are_in_the_namespace() -> None:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(file.name for file in BASE.glob("*.yaml") if file.stem != "kustomization")
    names = [named(each) for each in MANIFESTS]
    assert len(set(names)) == len(names)
    for each in [*MANIFESTS, *RAY]:
        if each["kind"] != "Namespace":
            assert each["metadata"]["namespace"] == "specmesh"


# The roles -----------------------------------------------------------------------------------------------------------


def test_there_is_a_workload_for_each_role_of_the_image_that_compose_has() -> None:
    assert set(WORKLOADS) == set(ROLES)
    name = COMPOSE["model"]["image"].partition(":")[0]
    for role in ROLES:
        assert main(role)["args"] == COMPOSE[role]["command"] == ["run", role]
        assert {each["image"] for each in containers(PODS[role])} == {f"{name}:latest"}
    for role in ("ray head", "ray worker"):
        assert {each["image"] for each in containers(PODS[role])} == {f"{name}-ray:latest"}
    assert re.search(r"^ARG RAY=$", DOCKERFILE, re.MULTILINE) and "${RAY:+--ray}" in DOCKERFILE


@pytest.mark.parametrize("role", [*ROLES, "ray head"])
def test_every_variable_is_a_setting_with_a_value_it_takes(role: str) -> None:
    given = environment(role)
    for name in given.keys() - NOT_SETTINGS:
        known = name.startswith(PREFIX) and name.removeprefix(PREFIX).lower() in ROWS
        assert known or name.removeprefix("RAY_") in ray_cluster.CONFIG, name
    own = {name: value for name, value in given.items() if not name.endswith("API_KEYS_FILE")}
    load_settings({}, {name: value for name, value in own.items() if name.startswith(PREFIX)})
    assert not [name for name in given if name.removeprefix(PREFIX).lower() in SECRET]


@pytest.mark.parametrize("role", ROLES)
def test_ports_are_those_of_compose_and_of_the_settings(role: str) -> None:
    given, ports = environment(role), {each["name"]: each["containerPort"] for each in main(role)["ports"]}
    usual = metrics_port(Settings.for_tests(), role)
    theirs = COMPOSE[role]["environment"]
    assert given["SPECMESH_METRICS_PORT"] == theirs["SPECMESH_METRICS_PORT"] == str(usual) == str(ports["metrics"])
    assert PODS[role]["metadata"]["annotations"]["prometheus.io/port"] == str(usual)
    assert given["SPECMESH_BIND"] == f"tcp://10.0.0.7:{ports['mesh']}"
    assert f"EXPOSE 8000 {' '.join(str(9100 + each) for each in range(4))}" in DOCKERFILE
    if role == "streamer":
        assert given["SPECMESH_PORT"] == theirs["SPECMESH_PORT"] == str(ports["http"])
    for probe, path in (("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
        assert main(role)[probe]["httpGet"] == {"path": f"/health/{path}", "port": "metrics"}


def test_one_pod_hosts_the_directory_and_all_others_dial_it() -> None:
    hosting = [role for role in ROLES if environment(role).get("SPECMESH_HOST_DIRECTORY") == "true"]
    assert hosting == ["tokenizer"]
    assert "SPECMESH_HOST_DIRECTORY" in COMPOSE["tokenizer"]["environment"]
    assert WORKLOADS["tokenizer"]["spec"]["replicas"] == 1
    assert WORKLOADS["tokenizer"]["spec"]["strategy"] == {"type": "Recreate"}
    service = next(each for each in MANIFESTS if each["metadata"]["name"] == "specmesh-directory")
    port = service["spec"]["ports"][0]["port"]
    assert environment("tokenizer")["SPECMESH_DIRECTORY"] == f"tcp://10.0.0.7:{port}"
    for role in set(ROLES) - {"tokenizer"}:
        assert environment(role)["SPECMESH_DIRECTORY"] == f"tcp://specmesh-directory:{port}"


def test_selectors_choose_what_they_mean_and_ports_are_there() -> None:
    for role, workload in WORKLOADS.items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels["role"] == role
    for each in MANIFESTS:
        chosen = each["spec"]["selector"] if each["kind"] in ("Service", "PodDisruptionBudget") else None
        if chosen is None:
            continue
        chosen = chosen.get("matchLabels", chosen)
        pods = [pod for pod in map(PODS.get, ROLES) if pod and chosen.items() <= pod["metadata"]["labels"].items()]
        assert len(pods) == 1, named(each)
        (container,) = pods[0]["spec"]["containers"]
        for port in each["spec"].get("ports", []):
            assert port["targetPort"] in [own["name"] for own in container["ports"]]
    assert {each["metadata"]["name"] for each in MANIFESTS if each["kind"] == "PodDisruptionBudget"} == {
        "specmesh-worker", "specmesh-streamer",
    }  # fmt: skip


# What a pod may do ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_can_write_little_and_gain_nothing(pod: str) -> None:
    spec = PODS[pod]["spec"]
    assert spec["automountServiceAccountToken"] is False
    user = spec["securityContext"]
    assert user["runAsNonRoot"] and f"--uid {user['runAsUser']} " in DOCKERFILE
    assert user["runAsUser"] == user["runAsGroup"] == user["fsGroup"]
    for each in containers(PODS[pod]):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert "memory" in each["resources"]["limits"]
    claims = WORKLOADS[pod]["spec"].get("volumeClaimTemplates", []) if pod in WORKLOADS else []
    volumes = {each["name"] for each in spec["volumes"]} | {each["metadata"]["name"] for each in claims}
    assert {each["name"] for one in containers(PODS[pod]) for each in one["volumeMounts"]} <= volumes
    assert not any("hostPath" in each for each in spec["volumes"])


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_has_the_memory_of_compose_and_time_to_drain(role: str) -> None:
    found = re.search(r"(\d+)g", COMPOSE[role]["mem_limit"])
    assert found and main(role)["resources"]["limits"]["memory"] == f"{found[1]}Gi"
    assert PODS[role]["spec"]["terminationGracePeriodSeconds"] > ROWS["drain_timeout"].default + 5


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_is_given_its_own_secret_key_and_no_other(role: str) -> None:
    names = [f"{name}.{half}" for name in ("mesh", *ROLES) for half in ("public", "secret")]
    volumes = {each["name"]: each for each in PODS[role]["spec"]["volumes"]}
    items = {item["key"] for item in volumes["secret-keys"]["secret"]["items"]}
    assert items == set(secrets_for(role, dict.fromkeys(names, "")))
    assert all(item["key"] == item["path"] for item in volumes["secret-keys"]["secret"]["items"])
    assert ("api-keys" in volumes) == (role == "streamer")
    assert volumes["keys"]["emptyDir"]["medium"] == "Memory"


def test_the_page_makes_every_secret_that_a_pod_needs() -> None:
    page = (ROOT / "docs" / "operate" / "cluster.md").read_text()
    needed = {
        each["secret"]["secretName"] for pod in PODS.values() for each in pod["spec"]["volumes"] if "secret" in each
    }
    made = set(re.findall(r"create secret generic (\S+)", page))
    assert needed == made == {"specmesh-keys", "specmesh-api-keys"}


def test_the_gpu_variant_changes_the_worker_alone() -> None:
    kustomization = yaml.safe_load((GPU / "kustomization.yaml").read_text())
    assert kustomization["resources"] == ["../base"] and kustomization["patches"] == [{"path": "worker.yaml"}]
    (patch,) = documents(GPU / "worker.yaml")
    assert patch["metadata"] == WORKLOADS["worker"]["metadata"]
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert container["name"] == main("worker")["name"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    cache = {each["name"]: each["value"] for each in container["env"]}["TRITON_CACHE_DIR"]
    # Kernels are loaded from there: a volume, and not the one of temporary files.
    mounts = {each["mountPath"]: each["name"] for each in main("worker")["volumeMounts"]}
    assert mounts[str(Path(cache).parent)] == "compiled"


# KubeRay -------------------------------------------------------------------------------------------------------------


def test_the_head_starts_the_mesh_once_ray_answers_and_needs_the_version_that_is_installed() -> None:
    spec = RAY[0]["spec"]
    assert f"ray=={spec['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
    assert RAY[0]["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    command = main("ray head")["command"][-1]
    words = ("KUBERAY_GEN_RAY_START_CMD", "ray health-check", "exec specmesh")
    assert sorted(words, key=command.index) == list(words)
    assert "KUBERAY_GEN_RAY_START_CMD" in main("ray worker")["command"][-1]
    syntax = subprocess.run(["sh", "-n", "-c", command], capture_output=True, text=True)
    assert syntax.returncode == 0, syntax.stderr


def test_there_is_room_for_the_workers_that_are_wanted() -> None:
    given, group = environment("ray head"), RAY[0]["spec"]["workerGroupSpecs"][0]
    cpus = float(main("ray worker")["resources"]["limits"]["cpu"])
    assert cpus // float(given["SPECMESH_WORKER_CPUS"]) * group["replicas"] >= int(given["SPECMESH_WORKERS"])
    assert cpus // float(given["SPECMESH_WORKER_CPUS"]) * group["maxReplicas"] >= int(given["SPECMESH_MAX_WORKERS"])

    for role in ("ray head", "ray worker"):
        told = {each["name"]: each.get("value") for each in main(role)["env"]}
        assert {f"RAY_{name}": str(value) for name, value in ray_cluster.CONFIG.items()}.items() <= told.items()


# As processes --------------------------------------------------------------------------------------------------------

ADDRESSES = {role: f"127.0.0.{11 + number}" for number, role in enumerate(ROLES)}


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A process for each role with the environment of its pod: addresses of this machine for those of pods, folders of
    the test for volumes, and the mock engine."""
    make_keys(tmp_path / "made", ROLES)
    first, running = free_ports(8), {}
    for role in ROLES:
        folder = tmp_path / role
        (folder / "keys").mkdir(parents=True)
        volume = next(each for each in PODS[role]["spec"]["volumes"] if each["name"] == "secret-keys")
        for item in volume["secret"]["items"]:
            shutil.copy(tmp_path / "made" / item["key"], folder / "keys" / item["path"])
        (folder / "api_keys").write_text("one\n")
        given = environment(role, ADDRESSES[role])
        moved = {"/run/keys": folder / "keys", "/tmp/run": folder / "run", "/run/secrets/specmesh": folder}
        for name, text in given.items():
            text = text.replace("specmesh-directory:7000", f"{ADDRESSES['tokenizer']}:{first + 4}")
            text = text.replace(":7000", f":{first + 4}").replace(":7001", f":{first + 5}")
            for old, new in moved.items():
                text = text.replace(old, str(new))
            given[name] = text
        given |= {
            "SPECMESH_METRICS_PORT": str(first + ROLES.index(role)), "SPECMESH_PORT": str(first + 6),
            "SPECMESH_STORE_DIR": "none", "SPECMESH_ENGINE": "mock", "SPECMESH_CONFIG": "",
        }  # fmt: skip
        given.pop("NUMBA_CACHE_DIR", None)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        with (folder / "log").open("wb") as log:
            running[role] = subprocess.Popen(
                rooms.command("services.cli", *main(role)["args"]),
                env={**inherited, **given}, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
    yield running
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.wait(30)


def test_processes_with_the_environments_of_the_pods_find_each_other(
    pods: dict[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    first = int(re.findall(r"metrics at port (\d+)", _log_with_port(tmp_path / "streamer" / "log"))[0])

    def ready() -> bool:
        assert [role for role, process in pods.items() if process.poll() is not None] == []
        return all(_status(f"http://127.0.0.1:{first + number}/health/ready") == 200 for number in range(len(ROLES)))

    logs = {role: (tmp_path / role / "log") for role in ROLES}
    assert wait_until(ready, 120.0), {role: log.read_text()[-1500:] for role, log in logs.items()}


def _log_with_port(log: Path) -> str:
    assert wait_until(lambda: "metrics at port" in log.read_text(), 60.0), log.read_text()[-3000:]
    return log.read_text()
