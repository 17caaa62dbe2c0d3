"""`specmesh up --on ray`, `specmesh scale` and `specmesh down`: a mesh on a Ray cluster, or on a Ray of this machine.

`up` starts the keeper (services/placement/keeper.py), tells what happens and waits; the mesh lives without it. Ctrl-C
drains and ends it; so does `specmesh down`, from anywhere in the cluster.
"""

from __future__ import annotations

import argparse
import signal
import sys
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
from services.api.settings import ROLES, Settings, cache_dir, keys_of, run_dir, to_environment
from services.cli.banner import curl, door_url
from services.cli.launch_plan import PortsTaken, check_ports, with_free_port
from services.cli.refusal import refuse
from services.placement import ray_cluster
from services.placement.folder import API_KEYS, read_keys, remove_left
from services.placement.plan import shares_of
from services.placement.ray_cluster import KeeperLink, NoRay
from services.runtime.process import make_run_dir

LOOK_EVERY = 0.25  # s
# For a keeper's process, on a machine that is busy.
START_TIMEOUT = 60.0  # s
# Beyond drain_timeout, for each of three stages.
LEAVE_GRACE = 15.0  # s
ADDRESS = "ray_address"


def up(settings: Settings) -> int:
    """Runs until Ctrl-C, SIGTERM or `specmesh down`. The exit code."""
    try:
        ray_cluster.require_ray()
        make_run_dir(run_dir(settings))
        settings = with_free_port(settings)
        check_ports(settings, [])
        _check_model(settings)
        address = ray_cluster.connect(settings.ray_address)
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
        self._heard = Heard()
        self._began = time.monotonic()
        self._told_ready = False
        self._wake = threading.Event()

    def run(self) -> int:
        if ray_cluster.find_keeper() is not None:
            ray_cluster.disconnect()
            raise NoRay(f"a mesh runs in the Ray cluster {self._address} already\n  fix: specmesh down")
        # `scale` and `down` on this machine find the cluster by it.
        self._file.write_text(self._address + "\n")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        environment, secrets = to_environment(self._settings), secrets_of(self._settings)
        shares = shares_of(self._settings, ray_cluster.gpus())
        link = ray_cluster.start_keeper(environment, secrets, shares)
        try:
            self._watch(link)
            # All has drained; or it was said twice.
            link.end()
        except NoRay:
            # `specmesh down`, from elsewhere.
            pass
        finally:
            self._file.unlink(missing_ok=True)
            _leave()
        _say("stopped")
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
                _say("draining; again to end at once")
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
            _say(text)
        if not self._told_ready and all_ready(status) and self._door_is_open():
            self._told_ready = True
            print(ready_text(self._settings, status, time.monotonic() - self._began), flush=True)

    def _door_is_open(self) -> bool:
        try:
            with urllib.request.urlopen(f"{door_url(self._settings)}/health/ready", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Heard:
    """Which of the keeper's events have been told. One that was started anew counts from 1 again."""

    def __init__(self) -> None:
        self.number = 0
        self._keeper = 0

    def new(self, status: Mapping[str, Any]) -> list[str]:
        if status["keeper"] != self._keeper:
            first, self._keeper = not self._keeper, status["keeper"]
            if not first:
                self.number = 0
                return []
        self.number = max([number for number, _ in status["events"]], default=self.number)
        return [text for _, text in status["events"]]


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


# Of a mesh that runs -----------------------------------------------------------------------------------------------


def scale(options: argparse.Namespace, settings: Settings) -> int:
    """Returns when as many are ready; those that are too many drain then."""
    try:
        link = _find(settings)
        heard = Heard()
        heard.new(ray_cluster.wait_for(link, START_TIMEOUT))
        link.scale(options.role, options.count)
        deadline = time.monotonic() + options.wait
        while True:
            status = link.status(heard.number)
            if status is not None:
                for text in heard.new(status):
                    _say(text)
                if _has(status, options.role, options.count):
                    return 0
            if time.monotonic() > deadline:
                raise NoRay(f"{options.count} of {options.role} aren't ready after {options.wait:.0f} s; `up` goes on")
            time.sleep(LOOK_EVERY)
    except (NoRay, OSError) as error:
        return refuse(error)
    finally:
        _leave()


def _has(status: Mapping[str, Any], role: str, count: int) -> bool:
    there = [each["state"] for each in status["watchers"] if each["role"] == role]
    return there == ["ready"] * count and status["desired"].get(role) == count


def down(options: argparse.Namespace, settings: Settings) -> int:
    try:
        link = _find(settings)
        link.stop()
        deadline = time.monotonic() + 3 * settings.drain_timeout + LEAVE_GRACE
        while not options.now and time.monotonic() < deadline:
            status = link.status()
            if status is not None and status["ended"]:
                break
            time.sleep(LOOK_EVERY)
        link.end()
        _say("stopped")
        return 0
    except NoRay as error:
        if str(error) == ray_cluster.ENDED:
            return 0
        return refuse(error)
    except OSError as error:
        return refuse(error)
    finally:
        _leave()


def _find(settings: Settings) -> KeeperLink:
    ray_cluster.require_ray()
    address = settings.ray_address or _address_of_up(settings)
    try:
        ray_cluster.connect(address)
    except (ConnectionError, RuntimeError) as error:
        raise NoRay(f"no Ray answers at {address} ({error})\n  fix: --ray-address HOST:6379") from None
    link = ray_cluster.find_keeper()
    if link is None:
        raise NoRay(f"no mesh runs in the Ray cluster {address}\n  fix: specmesh up --on ray --ray-address {address}")
    return link


def _address_of_up(settings: Settings) -> str:
    """Of the `up` of this machine with the same run_dir; else the cluster that this machine is part of."""
    try:
        return (run_dir(settings) / ADDRESS).read_text().strip() or "auto"
    except OSError:
        return "auto"


def _leave() -> None:
    if sys.modules.get("ray"):
        ray_cluster.disconnect()
    # Actors that are killed leave theirs.
    remove_left(Path(tempfile.gettempdir()))


def _say(text: str) -> None:
    print(f"specmesh: {text}", file=sys.stderr, flush=True)
