"""Workers of several ranks on Ray: what is reserved for them, and that all of them run on one machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.cluster_utils", reason="make ray")

import ray
from ray_mesh import RayMesh, ray_mesh, role_processes, three_machines
from running_mesh import until
from test_gpu_executor import all_at_once
from tiny_folder import write_tiny_model

from bench.running_mesh import descendants
from services.placement import ray_cluster
from services.placement.ray_cluster import WATCHER

SETTINGS: dict[str, Any] = {"dtype": "float32", "kv_cache_mb": 4}
WIDER = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with three_machines(gpus=2) as machines:
        yield machines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", **WIDER)


def reserved(instance: str) -> dict[str, float] | None:
    """What Ray has set aside for a process, once it has."""
    for group in ray.util.placement_group_table().values():
        if group["name"] == WATCHER + instance and group["state"] == "CREATED":
            (bundle,) = group["bundles"].values()
            return dict(bundle)
    return None


def test_two_ranks_say_what_one_says_and_have_a_core_each(cluster: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with ray_mesh(cluster, tmp_path / "one", model=model, executor="plain", **SETTINGS) as mesh:
        expected = all_at_once(mesh, "naive")
        assert reserved("worker-1") == {"CPU": 1.0}
        assert mesh.command("down").returncode == 0
    with ray_mesh(cluster, tmp_path, model=model, executor="plain", tensor_parallel_size=2, **SETTINGS) as mesh:
        assert reserved("worker-1") == {"CPU": 2.0}
        (worker,) = mesh.watchers()
        ranks = [line for line in descendants(worker["pid"]).values() if "services.worker.parallel.rank" in line]
        assert len(ranks) == 1
        assert {method: all_at_once(mesh, method) for method in ("naive", "ngram")} == {
            "naive": expected, "ngram": expected,
        }  # fmt: skip
        assert mesh.command("down").returncode == 0


def test_a_worker_that_fits_on_no_machine_is_told_with_what_it_asked_for(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    mesh = RayMesh(cluster, tmp_path, model=model, executor="triton", tensor_parallel_size=3, **SETTINGS)
    try:
        until(lambda: bool(ray_cluster.find_keeper() and mesh.watchers()), 60.0, lambda: mesh.text()[-4000:])
        told = mesh.command("status", f"--port={mesh.port}", "--json")
        (waits,) = json.loads(told.stdout)["ray"]["waiting"]
        assert waits["instance"] == "worker-1" and waits["needs"] == {"CPU": 3.0, "GPU": 3.0}
        told = mesh.command("status", f"--port={mesh.port}")
        assert "worker-1 waits for 3 CPUs and 3 GPUs on one machine" in told.stdout
        assert told.returncode == 1 and "no machine has as many" in told.stdout
    finally:
        assert mesh.command("down", "--now").returncode == 0
        mesh.stop()


def test_each_rank_gets_a_gpu_of_one_machine(cluster: Any, model: Path, tmp_path: Path) -> None:
    """The GPUs are only numbers here, so the worker can't start; what it was given is seen all the same."""
    mesh = RayMesh(cluster, tmp_path, model=model, executor="triton", tensor_parallel_size=2, **SETTINGS)
    try:
        given: set[str] = set()

        def seen() -> bool:
            for pid in [pid for pid, line in role_processes().items() if " run worker" in line]:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                given.update(each.decode() for each in environment if each.startswith(b"CUDA_VISIBLE_DEVICES="))
            return bool(given)

        until(seen, 120.0, lambda: mesh.text()[-4000:])
        assert reserved("worker-1") == {"CPU": 2.0, "GPU": 2.0}
        assert given == {"CUDA_VISIBLE_DEVICES=0,1"}
        with_gpus = [each["NodeID"] for each in ray.nodes() if each["Resources"].get("GPU") == 2.0]
        assert [each["machine"] for each in mesh.watchers()] == with_gpus
    finally:
        assert mesh.command("down", "--now").returncode == 0
        mesh.stop()
