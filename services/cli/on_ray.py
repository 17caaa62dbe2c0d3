"""`specmesh up --on ray`: a mesh on a Ray cluster, or on a Ray of this machine.

It starts the keeper (services/placement/keeper.py), tells what happens and waits; the mesh lives without it. Ctrl-C
drains and ends it; so does `specmesh down`, from anywhere in the cluster (ray_commands.py).
"""

from __future__ import annotations

import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from mesh.directory import DIRECTORY
from mesh.security import make_keys
from models.errors import ModelError
from services.api.chosen_head import with_verifier
from services.api.own_door import own_context, own_url
from services.api.settings import ROLES, Settings, cache_dir, keys_of, run_dir, to_environment
from services.cli.banner import curl, door_url
from services.cli.launch_plan import PortsTaken, check_ports, with_free_port
from services.cli.ray_commands import START_TIMEOUT, RayHeard, leave, say
from services.cli.which_mesh import ADDRESS
from services.placement import ray_cluster
from services.placement.folder import API_KEYS, read_keys
from services.placement.plan import shares_of
from services.placement.ray_cluster import KeeperLink, NoRay
from services.runtime.ending import ending_signals
from services.runtime.process import make_run_dir
from services.runtime.refusal import refuse

LOOK_EVERY = 0.25  # s


def up(settings: Settings) -> int:
    """Runs until one of ending.py's signals or `specmesh down`. The exit code."""
    if settings.nnodes > 1:
        return refuse(
            f"{settings.origin('nnodes')}: with --on ray a worker's ranks are on one machine\n"
            "  fix: leave nnodes out, or start the nodes without --on ray (docs/operate/parallel.md)"
        )
    try:
        ray_cluster.require_ray()
        make_run_dir(run_dir(settings))
        settings = with_verifier(with_free_port(settings))
        check_ports(settings, [])
        _check_model(settings)
        address = ray_cluster.connect(settings.ray_address, logs=True)
        return _Up(settings, address).run()
    except (NoRay, PortsTaken, ModelError, OSError, ValueError) as error:
        return refuse(error)


def _check_model(settings: Settings) -> None:
    """Fetched and checked here once; each other machine fetches it when its first process needs it."""
    from models.check import check_context, check_model
    from models.sources import ensure_model

    folder = ensure_model(settings.model, cache_dir(settings), None, settings.dtype)
    if settings.engine == "torch":
        check_context(check_model(folder).network, settings.max_context)


class _Up:
    def __init__(self, settings: Settings, address: str) -> None:
        self._settings = settings
        self._address = address
        self._file = run_dir(settings) / ADDRESS
        self._asked_to_stop = 0
        self._heard = RayHeard()
        self._began = time.monotonic()
        self._told_ready = False
        self._wake = threading.Event()

    def run(self) -> int:
        from specmesh.ray_actors import KeeperActor

        if ray_cluster.find_keeper() is not None:
            ray_cluster.disconnect()
            raise NoRay(f"a mesh runs in the Ray cluster {self._address} already\n  fix: specmesh down")
        # `scale` and `down` on this machine find the cluster by it.
        self._file.write_text(self._address + "\n", "utf-8")
        for number in ending_signals():
            signal.signal(number, self._stop)
        environment, secrets = to_environment(self._settings), secrets_of(self._settings)
        shares = shares_of(self._settings, ray_cluster.gpus())
        link = ray_cluster.start_keeper(KeeperActor, environment, secrets, shares)
        try:
            self._watch(link)
            # All has drained; or it was said twice.
            link.end()
        except NoRay:
            # `specmesh down`, from elsewhere.
            pass
        finally:
            self._file.unlink(missing_ok=True)
            leave()
        say("stopped")
        return 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop += 1
        self._wake.set()

    def _watch(self, link: KeeperLink) -> None:
        """Until it has ended, or is to end at once."""
        stopping = False
        ray_cluster.wait_for(link, START_TIMEOUT)
        while self._asked_to_stop < 2:
            if self._asked_to_stop and not stopping:
                stopping = True
                say("draining; again to end at once")
                link.stop()
            status = link.status(self._heard.number)
            if status is not None:
                self._tell(status)
                if status["ended"]:
                    return
            self._wake.wait(LOOK_EVERY)
            if self._asked_to_stop < 2:
                self._wake.clear()

    def _tell(self, status: dict[str, Any]) -> None:
        for text in self._heard.new(status):
            say(text)
        if not self._told_ready and all_ready(status) and self._door_is_open():
            self._told_ready = True
            print(ready_text(self._settings, status, time.monotonic() - self._began), flush=True)

    def _door_is_open(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"{own_url(self._settings)}/health/ready", timeout=2.0, context=own_context(self._settings)
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def all_ready(status: Mapping[str, Any]) -> bool:
    ready = [each["role"] for each in status["watchers"] if each["state"] == "ready"]
    # Without a proposer requests are only slower.
    return all(ready.count(role) >= count for role, count in status["desired"].items() if role != "proposer")


def ready_text(settings: Settings, status: Mapping[str, Any], took: float) -> str:
    lines = [f"specmesh is ready on Ray ({took:.1f} s): {door_url(settings)}/v1", ""]
    lines += [f"  {each['instance']:<14} {each['address']}" for each in status["watchers"]]
    return "\n".join([*lines, "", curl(settings, door_url(settings)), ""])


def secrets_of(settings: Settings) -> dict[str, str]:
    """New CURVE keys for this mesh, and the API keys; by file name. With keys_dir each machine reads its own folder,
    and no CURVE key travels."""
    api_keys = {API_KEYS: "\n".join([*keys, ""])} if (keys := keys_of(settings.api_keys)) else {}
    if settings.keys_dir:
        return api_keys
    with tempfile.TemporaryDirectory(prefix="specmesh-keys-") as folder:
        make_keys(Path(folder), [*ROLES, DIRECTORY])
        return {**read_keys(Path(folder)), **api_keys}
