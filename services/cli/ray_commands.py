"""`specmesh scale`, `specmesh roll` and `specmesh down` for a mesh that runs on Ray, from any machine of its cluster.
The keeper (services/placement/keeper.py) does it; these ask it, and tell what happens.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from services.api.settings import Settings
from services.cli.which_mesh import cluster_of
from services.placement import ray_cluster
from services.placement.folder import remove_left
from services.placement.ray_cluster import KeeperLink, NoRay
from services.runtime.refusal import refuse

LOOK_EVERY = 0.25  # s
# For a keeper's process, on a machine that is busy.
START_TIMEOUT = 60.0  # s
# For a worker, beyond its drain.
LOAD_TIMEOUT = 300.0  # s
# Beyond drain_timeout, for each of three stages.
LEAVE_GRACE = 15.0  # s

Status = Mapping[str, Any]


class RayHeard:
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


def scale(options: argparse.Namespace, settings: Settings) -> int:
    """Returns when as many are ready; those that are too many drain then."""

    def act(link: KeeperLink) -> int:
        heard = _caught_up(link)
        link.scale(options.role, options.count)
        _wait(
            link, heard, options.wait, lambda status: has(status, options.role, options.count),
            f"{options.count} of {options.role} aren't ready",
        )  # fmt: skip
        return 0

    return _asked(settings, act)


def roll(settings: Settings) -> int:
    """Returns when every worker that runs now has been replaced."""

    def act(link: KeeperLink) -> int:
        heard = _caught_up(link)
        old = link.roll()
        if not old:
            raise NoRay("the keeper doesn't answer now: try again" if old is None else "no worker runs")
        patience = len(old) * (settings.drain_timeout + LOAD_TIMEOUT)
        _wait(link, heard, patience, lambda status: is_rolled(status, old), "not all workers are replaced")
        return 0

    return _asked(settings, act)


def is_rolled(status: Status, old: list[str]) -> bool:
    """Raises NoRay where the keeper has given up."""
    there = {each["instance"] for each in status["watchers"]}
    if left := [name for name in old if name in there]:
        if not status["old"]:
            raise NoRay(f"not replaced: {', '.join(left)}")
        return False
    return has(status, "worker", status["desired"].get("worker", -1))


def down(options: argparse.Namespace, settings: Settings) -> int:
    def act(link: KeeperLink) -> int:
        try:
            link.stop()
            deadline = time.monotonic() + 3 * settings.drain_timeout + LEAVE_GRACE
            while not options.now and time.monotonic() < deadline:
                status = link.status()
                if status is not None and status["ended"]:
                    break
                time.sleep(LOOK_EVERY)
            link.end()
        except NoRay as error:
            if str(error) != ray_cluster.ENDED:
                raise
            return 0
        say("stopped")
        return 0

    return _asked(settings, act)


# Asking ------------------------------------------------------------------------------------------------------------


def _asked(settings: Settings, act: Callable[[KeeperLink], int]) -> int:
    try:
        with keeper_of(settings) as link:
            return act(link)
    except (NoRay, OSError) as error:
        return refuse(error)


@contextlib.contextmanager
def keeper_of(settings: Settings) -> Iterator[KeeperLink]:
    """The keeper of the mesh that runs in the cluster. Raises NoRay."""
    ray_cluster.require_ray()
    address = cluster_of(settings) or "auto"
    try:
        try:
            ray_cluster.connect(address)
        except (ConnectionError, RuntimeError) as error:
            raise NoRay(f"no Ray answers at {address} ({error})\n  fix: --ray-address HOST:6379") from None
        link = ray_cluster.find_keeper()
        if link is None:
            fix = f"specmesh up --on ray --ray-address {address}"
            raise NoRay(f"no mesh runs in the Ray cluster {address}\n  fix: {fix}")
        yield link
    finally:
        leave()


def leave() -> None:
    if sys.modules.get("ray"):
        ray_cluster.disconnect()
    # Actors that are killed leave theirs.
    remove_left(Path(tempfile.gettempdir()))


def say(text: str) -> None:
    print(f"specmesh: {text}", file=sys.stderr, flush=True)


def _caught_up(link: KeeperLink) -> RayHeard:
    """What happened until now isn't told."""
    heard = RayHeard()
    heard.new(ray_cluster.wait_for(link, START_TIMEOUT))
    return heard


def _wait(link: KeeperLink, heard: RayHeard, seconds: float, done: Callable[[Status], bool], late: str) -> None:
    """Raises NoRay with `late`; what was asked for goes on."""
    deadline = time.monotonic() + seconds
    while True:
        status = link.status(heard.number)
        if status is not None:
            for text in heard.new(status):
                say(text)
            if done(status):
                return
        if time.monotonic() > deadline:
            raise NoRay(f"{late} after {seconds:.0f} s; `up` goes on")
        time.sleep(LOOK_EVERY)


def has(status: Status, role: str, count: int) -> bool:
    there = [each["state"] for each in status["watchers"] if each["role"] == role]
    return there == ["ready"] * count and status["desired"].get(role) == count
