"""Ray as the cluster on which a mesh is placed: it starts, watches and moves processes. The only module that knows Ray.

    up ──▶ keeper (an actor, detached, started again by Ray) ──▶ for each process a watcher (an actor, in a placement
                                                                  group)

Nothing that a client sent passes through Ray: calls carry names, settings, keys and addresses of our own. Tokens go
over the processes' own sockets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.placement.cluster import WatcherGone
from services.placement.folder import secrets_for
from services.placement.plan import Machine, Share, Watcher, choose_machine
from services.placement.watcher import Orders, Report

log = logging.getLogger(__name__)

NAMESPACE = "specmesh"
KEEPER = "keeper"
# Of watchers and of their placement groups.
WATCHER = "specmesh:"
# Of a Ray that we start. It notices within two seconds that a machine has gone (16 s by default), and doesn't lower the
# priority of what it runs (by 15 by default): beside other load that left a worker a fraction of the cores.
CONFIG = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 2,
    "worker_niceness": 0,
}
INSTALL = "--on ray needs Ray, which isn't installed: in a checkout of specmesh, make ray or pip install '.[ray]'"
ENDED = "the mesh has ended"
ASK_TIMEOUT = 10.0  # s
ASK_AGAIN = 0.2  # s
LISTENS_WITHIN = 5.0  # s
# What doesn't ask for anything Ray puts on any machine, whatever machine is asked for.
LEAST_CPUS = 0.001


class NoRay(Exception):
    """Ray isn't installed, or no mesh of ours is in the cluster."""


def require_ray() -> Any:
    # It would tell its makers of each start.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Lines of a log are what they are.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # Ray takes a token of its own accord only where it starts or finds a cluster by itself.
    if has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError:
        raise NoRay(INSTALL) from None
    return ray


def has_token() -> bool:
    """Whether calls of Ray can be authenticated."""
    named = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return named or (Path.home() / ".ray" / "auth_token").exists()


def connect(address: str, logs: bool = False) -> str:
    """Joins a cluster, or starts one of this machine alone. Its address. `logs`: what its processes say is printed."""
    ray = require_ray()
    quiet = {"namespace": NAMESPACE, "logging_level": logging.WARNING, "log_to_driver": logs}
    if address:
        check_listens(address)
        ray.init(address, **quiet)
    else:
        ray.init("local", include_dashboard=False, _system_config=CONFIG, **quiet)
    return str(ray.get_runtime_context().gcs_address)


def check_listens(address: str) -> None:
    """Ray itself would try for minutes. Raises NoRay."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), LISTENS_WITHIN).close()
    except OSError as error:
        raise NoRay(f"no Ray answers at {address} ({error})\n  fix: --ray-address HOST:6379") from None


def disconnect() -> None:
    require_ray().shutdown()


def gpus() -> float:
    return float(require_ray().cluster_resources().get("GPU", 0.0))


class KeeperLink:
    """The keeper as `up`, `scale` and `down` see it."""

    def __init__(self, actor: Any) -> None:
        self._ray = require_ray()
        self._actor = actor

    def status(self, after: int = 0) -> dict[str, Any] | None:
        """None: it doesn't answer now, as one that is being started anew. NoRay: it is gone for good."""
        answer: dict[str, Any] | None = self._ask("status", after)
        return answer

    def scale(self, role: str, count: int) -> None:
        self._ask("scale", role, count)

    def roll(self) -> list[str] | None:
        """The workers that are replaced from now on; None: it doesn't answer."""
        answer: list[str] | None = self._ask("roll")
        return answer

    def stop(self) -> None:
        self._ask("stop")

    def end(self) -> None:
        """With all that it had placed, without waiting for anything."""
        for instance in _known(self._ray):
            _remove(self._ray, instance)
        self._ray.kill(self._actor)

    def _ask(self, method: str, *words: object) -> Any:
        try:
            return self._ray.get(getattr(self._actor, method).remote(*words), timeout=ASK_TIMEOUT)
        except (self._ray.exceptions.ActorUnavailableError, self._ray.exceptions.GetTimeoutError):
            return None
        except self._ray.exceptions.ActorDiedError:
            raise NoRay(ENDED) from None


def start_keeper(
    keeper: type, environment: Mapping[str, str], secrets: Mapping[str, str], shares: Mapping[str, Share]
) -> KeeperLink:
    """`keeper`: the actor's class. Near this process, while its machine is there."""
    ray = require_ray()
    home = ray.get_runtime_context().get_node_id()
    near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=home, soft=True)
    options = {
        "name": KEEPER, "lifetime": "detached", "max_restarts": -1, "max_task_retries": 0,
        "num_cpus": LEAST_CPUS, "scheduling_strategy": near, "max_concurrency": 4,
    }  # fmt: skip
    words = {role: (share.cpus, share.gpus) for role, share in shares.items()}
    return KeeperLink(ray.remote(keeper).options(**options).remote(dict(environment), dict(secrets), words, home))


def find_keeper() -> KeeperLink | None:
    ray = require_ray()
    try:
        return KeeperLink(ray.get_actor(KEEPER, namespace=NAMESPACE))
    except ValueError:
        return None


def machine_id() -> str:
    return str(require_ray().get_runtime_context().get_node_id())


def machine_address() -> str:
    return str(require_ray().util.get_node_ip_address())


def lowered() -> int:
    """By how much Ray has lowered the priority of this process. It is a child of Ray's own of this machine."""
    return os.getpriority(os.PRIO_PROCESS, 0) - os.getpriority(os.PRIO_PROCESS, os.getppid())


def machines() -> list[Machine]:
    alive = [each for each in require_ray().nodes() if each["Alive"]]
    return [
        Machine(each["NodeID"], each["Resources"].get("CPU", 0.0), each["Resources"].get("GPU", 0.0)) for each in alive
    ]


class RayCluster:
    """Meets `services.placement.cluster.Cluster`. In the keeper's process. `watcher`: the class of watchers' actors."""

    def __init__(
        self,
        watcher: type,
        environment: Mapping[str, str],
        secrets: Mapping[str, str],
        shares: Mapping[str, Share],
        home: str,
    ) -> None:
        self._watcher = watcher
        self._ray = require_ray()
        self._environment, self._secrets = dict(environment), dict(secrets)
        self.shares, self._home = shares, home
        self._actors: dict[str, Any] = {}

    def create(self, role: str, instance: str, watchers: list[Watcher], told: Orders) -> str:
        ray, share = self._ray, self.shares[role]
        machine = choose_machine(role, self.shares, machines(), watchers, self._home)
        # On this machine, unless it is full or gone by then.
        group = ray.util.placement_group(
            [share.bundle()], strategy="STRICT_PACK", name=WATCHER + instance, lifetime="detached",
            _soft_target_node_id=machine or None,
        )  # fmt: skip
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=0
        )
        # Not started again by Ray: whether and where another is needed is the keeper's to say.
        options = {
            "name": WATCHER + instance, "lifetime": "detached", "max_restarts": 0, "num_cpus": share.cpus,
            "num_gpus": share.gpus, "scheduling_strategy": strategy,
        }  # fmt: skip
        actor = ray.remote(self._watcher).options(**options)
        secrets = secrets_for(role, self._secrets)
        self._actors[instance] = actor.remote(role, instance, self._environment, secrets, told)
        return machine

    async def tick(self, instance: str, told: Orders) -> Report:
        while True:
            try:
                answer: Report = await asyncio.wrap_future(self._actor(instance).tick.remote(told).future())
                return answer
            except self._ray.exceptions.ActorUnavailableError:
                # Ray doesn't know yet whether it is gone. Meanwhile it is silent.
                await asyncio.sleep(ASK_AGAIN)
            except (self._ray.exceptions.RayActorError, ValueError):
                raise WatcherGone(instance) from None

    def drain(self, instance: str) -> None:
        try:
            self._actor(instance).drain.remote()
        except ValueError:
            raise WatcherGone(instance) from None

    def remove(self, instance: str) -> None:
        self._actors.pop(instance, None)
        _remove(self._ray, instance)

    def known(self) -> list[str]:
        return _known(self._ray)

    def _actor(self, instance: str) -> Any:
        if instance not in self._actors:
            self._actors[instance] = self._ray.get_actor(WATCHER + instance, namespace=NAMESPACE)
        return self._actors[instance]


def _known(ray: Any) -> list[str]:
    """Instances with a watcher, or with room that is set aside for one: the watcher may have died with a keeper."""
    groups = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
    names = {*ray.util.list_named_actors(), *(group["name"] for group in groups)}
    return sorted(name.removeprefix(WATCHER) for name in names if name.startswith(WATCHER))


def _remove(ray: Any, instance: str) -> None:
    """The watcher, if it still is, and what was set aside for it."""
    try:
        ray.kill(ray.get_actor(WATCHER + instance, namespace=NAMESPACE))
    except ValueError:
        log.debug("%s is gone already", instance)
    try:
        ray.util.remove_placement_group(ray.util.get_placement_group(WATCHER + instance))
    except ValueError:
        log.debug("%s has no placement group", instance)


def wait_for(link: KeeperLink, seconds: float) -> dict[str, Any]:
    """The first status. Raises NoRay."""
    end = time.monotonic() + seconds
    while (status := link.status()) is None:
        if time.monotonic() > end:
            raise NoRay(f"the keeper wasn't started within {seconds:.0f} s")
    return status
