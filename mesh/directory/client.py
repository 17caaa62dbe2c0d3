"""One process's view of the directory, and its announcements. While no directory answers, the last table is used."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from mesh.clock import Clock, SystemClock
from mesh.directory.actor import DIRECTORY, Announce, Table
from mesh.directory.membership import Member, choose
from mesh.errors import MeshError, NoPeer
from mesh.node import Node
from mesh.ref import Ref

log = logging.getLogger(__name__)

# Minimum time between two polls of one client, however fast the table changes.
CLOSEST_POLLS = 0.01  # s


class DirectoryClient:
    """`member` gives what is announced of this process; None: it only looks. `directory`: its endpoint, or where to
    read it; it is read again while no directory answers, as one that is started anew may be somewhere else."""

    def __init__(
        self,
        node: Node,
        directory: str | Callable[[], str],
        member: Callable[[], Member | None] = lambda: None,
        interval: float = 0.5,
        clock: Clock | None = None,
    ) -> None:
        self._node = node
        self._endpoint = directory if callable(directory) else lambda: directory
        self._directory = node.ref(self._endpoint(), DIRECTORY)
        self._member = member
        self._interval = interval
        self._clock = clock or SystemClock()
        self._view: dict[tuple[str, str], Member] = {}
        self._version = 0
        self._born = 0
        # Known from an earlier directory, not yet announced to the present one, which has just started.
        self._inherited: dict[tuple[str, str], Member] = {}
        self._picks: dict[str, int] = {}  # since the last table: what its loads don't show yet
        self._turn = random.randrange(1 << 16)
        self._fenced_epoch = -1
        self._announced: Member | None = None
        self._change: list[Callable[[], None]] = []
        self._fencing: list[Callable[[int, bool], None]] = []
        self._polling: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self.connected = False
        self._heard = self._clock.now()

    @property
    def silence(self) -> float:
        """Seconds since the directory told us its table; it does about every `interval`."""
        return self._clock.now() - self._heard

    # Members ---------------------------------------------------------------------------------------

    def members(self, role: str | None = None) -> list[Member]:
        """All alive that play the role (None: any), ready or not."""
        return [member for member in self._known(role) if member.state != "lost"]

    def lost(self, role: str | None = None) -> list[Member]:
        """Those that went silent within the last minute and were not replaced."""
        return [member for member in self._known(role) if member.state == "lost"]

    def ready(self, role: str) -> list[Member]:
        return [member for member in self._known(role) if member.state == "ready"]

    def _known(self, role: str | None) -> list[Member]:
        return [member for member in self._view.values() if role is None or member.role == role]

    def pick(self, role: str, key: str | None = None) -> Member | None:
        """A ready member: with a key the same one while it is there, else the one with the least load."""
        ready = self.ready(role)
        if not ready:
            return None
        if key is not None:
            return choose(ready, key)
        self._turn += 1
        start = self._turn % len(ready)
        picked = min(ready[start:] + ready[:start], key=lambda m: m.load + self._picks.get(m.instance, 0))
        self._picks[picked.instance] = self._picks.get(picked.instance, 0) + 1
        return picked

    def ref(self, role: str, key: str | None = None) -> Ref:
        member = self.pick(role, key)
        if member is None:
            raise NoPeer(f"no {role} is ready")
        return self._node.ref(member.endpoint, role)

    # Callbacks -------------------------------------------------------------------------------

    def on_change(self, callback: Callable[[], None]) -> None:
        """Called after someone came, went or changed state. Load and progress change silently."""
        self._change.append(callback)

    def on_fenced(self, callback: Callable[[int, bool], None]) -> None:
        """Called once per epoch of ours that counts as dead: with the epoch to exceed, and whether another process has
        replaced this one."""
        self._fencing.append(callback)

    # Announcing -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll_for_ever())

    async def stop(self) -> None:
        """Leaves, so that others need not wait to find out."""
        if self._polling is None:
            return
        self._polling.cancel()
        if self._announcing is not None:
            self._announcing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._polling
        self._polling = None
        if self._announced is not None and self.connected:
            with contextlib.suppress(MeshError):
                await self._directory.ask(Announce(self._announced, leaving=True), timeout=0.5)

    def announce_now(self) -> None:
        """Something changed that others should know before the next round."""
        member = self._member()
        if member is not None and self._polling is not None:
            self._announced = member
            self._announcing = asyncio.create_task(self._announce(member))

    async def _announce(self, member: Member) -> None:
        # The next poll says it again.
        with contextlib.suppress(MeshError):
            await self._directory.ask(Announce(member, known=-1), timeout=self._interval)

    async def _poll_for_ever(self) -> None:
        while True:
            began = self._clock.now()
            self._announced = self._member()
            announce = Announce(self._announced, self._version, self._interval)
            try:
                # An unreachable directory is noticed within a second.
                self._take(await self._directory.ask(announce, timeout=self._interval + 1.0))
                pause = CLOSEST_POLLS - (self._clock.now() - began)
            except MeshError as error:
                if self.connected:
                    log.warning("the directory doesn't answer (%s); using the last table", error)
                self.connected = False
                self._look_where_it_is()
                pause = self._interval / 2
            if pause > 0:
                await self._clock.sleep(pause)

    def _look_where_it_is(self) -> None:
        try:
            endpoint = self._endpoint()
        except (OSError, ValueError) as error:
            log.warning("where the directory is can't be read: %s", error)
            return
        if endpoint != self._directory.endpoint:
            log.warning("the directory is at %s now", endpoint)
            self._directory = self._node.ref(endpoint, DIRECTORY)

    def _take(self, table: Table) -> None:
        self.connected = True
        self._heard = self._clock.now()
        self._picks.clear()
        if table.fence and self._announced is not None and self._announced.epoch != self._fenced_epoch:
            self._fenced_epoch = self._announced.epoch
            _call_all(self._fencing, table.fence, table.replaced)
        before, after = self._view, {member.key: member for member in table.members}
        if table.born != self._born:
            self._born, self._inherited = table.born, before
        self._inherited = {} if table.settled else {k: m for k, m in self._inherited.items() if k not in after}
        after = {**self._inherited, **after}
        self._view, self._version = after, table.version
        if before.keys() != after.keys() or any(not before[key].looks_like(after[key]) for key in after):
            _call_all(self._change)


def _call_all(callbacks: list[Callable[..., None]], *args: object) -> None:
    for callback in list(callbacks):
        try:
            callback(*args)
        except Exception:  # a failing callback must not stop the heartbeat
            log.exception("a directory callback failed")
