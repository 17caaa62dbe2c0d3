"""The two kinds of Ray actors of a mesh on a cluster. Here because Ray finds an actor's class by its module, and only
`specmesh` is found by every Python that has specmesh; what they do is in services/placement/.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping

from specmesh import rooms

rooms.put_first()

from services.api.settings import load_settings  # noqa: E402
from services.placement import ray_cluster  # noqa: E402
from services.placement.keeper import Keeper  # noqa: E402
from services.placement.plan import Share  # noqa: E402
from services.placement.watcher import Orders, RoleWatcher  # noqa: E402

log = logging.getLogger(__name__)


class WatcherActor(RoleWatcher):
    def __init__(
        self, role: str, instance: str, environment: Mapping[str, str], secrets: Mapping[str, str], told: Orders
    ) -> None:
        super().__init__(role, instance, environment, secrets, ray_cluster.machine_id(), ray_cluster.machine_address())
        # The keeper's first call takes Ray half a second; the process starts meanwhile.
        self.tick(told)


class KeeperActor:
    """The keeper's loop is a thread of its own; Ray's threads ask it."""

    def __init__(
        self,
        environment: Mapping[str, str],
        secrets: Mapping[str, str],
        shares: Mapping[str, tuple[float, float]],
        home: str,
    ) -> None:
        cluster = ray_cluster.RayCluster(
            WatcherActor, environment, secrets, {role: Share(*words) for role, words in shares.items()}, home
        )
        settings = load_settings({}, environment)
        self._loop = asyncio.new_event_loop()
        self._keeper = Keeper(settings, secrets, ray_cluster.machine_address(), cluster)
        if more := ray_cluster.lowered():
            self._keeper.say(
                f"Ray lowers the priority of what it runs by {more}: beside other programs workers are slow. Set "
                "RAY_worker_niceness=0 before `ray start`, on each machine"
            )
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._keeper.run())
        except BaseException:
            log.exception("the keeper fails and is started anew")
            os._exit(1)

    def status(self, after: int) -> dict[str, object]:
        return self._keeper.status(after)

    def scale(self, role: str, count: int) -> None:
        self._loop.call_soon_threadsafe(self._keeper.scale, role, count)

    def roll(self) -> list[str]:
        async def roll() -> list[str]:
            return self._keeper.roll()

        return asyncio.run_coroutine_threadsafe(roll(), self._loop).result(ray_cluster.ASK_TIMEOUT)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._keeper.stop)
