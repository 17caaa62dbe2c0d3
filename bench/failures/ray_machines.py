"""Machines of a Ray cluster that are all this machine, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.running_mesh import descendants
from services.placement import ray_cluster


@contextmanager
def three_machines(gpus: int = 0) -> Iterator[Any]:
    """The first one has room for all but the workers; each of the others for two of these. `gpus`: as many on the last,
    which are only numbers. Yields Ray's Cluster."""
    # Calls of these clusters need a token, as those of any cluster should. Read by Ray when it is imported.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray = ray_cluster.require_ray()
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 4, "include_dashboard": False, "_system_config": ray_cluster.CONFIG}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for more in (0, gpus):
            cluster.add_node(num_cpus=2, num_gpus=more)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def kill_machine(cluster: Any, node_id: str) -> None:
    """Without a word to anyone, as when it loses power: all of it at once. Ray alone would end its own processes first,
    and ours would go on for a second or more."""
    machine = next(each for each in cluster.list_all_nodes() if each.node_id == node_id)
    processes = [started[0].process.pid for started in machine.all_processes.values()]
    for pid in {*processes, *(child for parent in processes for child in descendants(parent))}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    cluster.remove_node(machine, allow_graceful=False)
