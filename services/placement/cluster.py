"""Where watchers run, as the keeper needs it. ray_cluster.py is one; tests have one of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from services.placement.plan import Share, Watcher
from services.placement.watcher import Orders, Report


class WatcherGone(Exception):
    """The watcher's process, or its machine, has ended."""


class Cluster(Protocol):
    """Nothing here waits for a watcher to be placed."""

    # By role.
    shares: Mapping[str, Share]

    def create(self, role: str, instance: str, watchers: list[Watcher], told: Orders) -> str:
        """Asks for a watcher, which starts its process with `told`; the machine that it should go to, "": none has room
        as far as is known."""
        ...

    def tick(self, instance: str, told: Orders) -> Awaitable[Report]:
        """Raises WatcherGone."""
        ...

    def drain(self, instance: str) -> None: ...

    def remove(self, instance: str) -> None: ...

    def known(self) -> list[str]:
        """The watchers that an earlier keeper has had placed."""
        ...
