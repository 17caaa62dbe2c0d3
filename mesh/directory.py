"""The directory: who plays which role, where, and since when. Soft state: members announce themselves about
twice a second and get the table back; a directory that restarts knows everything again after one round.

An announcement is an ask that the directory holds until something changes or the interval is over (a long
poll): a change reaches everyone within a round trip. What is decided is in `mesh/membership.py`; here are the
actor that holds the table and the client that every process runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from mesh.actor import Actor, Call
from mesh.clock import Clock, SystemClock
from mesh.errors import MeshError, NoPeer, Refuse
from mesh.membership import Member, Membership, choose
from mesh.node import Node
from mesh.ref import Ref

__all__ = ["DIRECTORY", "DIRECTORY_KINDS", "DirectoryActor", "DirectoryClient", "Member"]

log = logging.getLogger(__name__)

DIRECTORY = "directory"
LONGEST_HOLD = 5.0  # s
# Two polls of one client are at least so far apart, however fast the table changes.
CLOSEST_POLLS = 0.01  # s


class Announce(msgspec.Struct, frozen=True, array_like=True):
    """Answered when the table's version isn't `known`, or after `hold`. `member` None: only asks for the table."""

    member: Member | None
    known: int = 0
    hold: float = 0.0  # s
    leaving: bool = False


class Table(msgspec.Struct, frozen=True, array_like=True):
    """The whole of what the directory knows. `fenced`: the announced epoch counts as dead."""

    version: int
    members: Annotated[list[Member], Meta(max_length=2048)]
    fenced: bool = False
    settled: bool = True  # False: the directory is so young that who isn't in may yet announce himself
    born: int = 0  # the version it began with: tells one directory from the next


DIRECTORY_KINDS: dict[str, type[msgspec.Struct]] = {"announce": Announce, "table": Table}


class DirectoryActor(Actor):
    """Holds the table. One per mesh, on a node at the well-known endpoint."""

    handlers: ClassVar = {Announce: "announce"}
    mailbox_size = 4096
    concurrency = 4096  # held polls wait, they don't work

    def __init__(
        self,
        *,
        stale_after: float = 2.0,
        clock: Clock | None = None,
        on_change: Callable[[list[Member]], None] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._stale_after = stale_after
        # No earlier directory's version may look like one of ours.
        self._born = time.time_ns() >> 10
        self._membership = Membership(self._clock.now(), stale_after=stale_after, version=self._born)
        self._on_change = on_change
        self._told = self._membership.version
        self._held: set[asyncio.Future[None]] = set()
        self._ticking: asyncio.Task[None] | None = None

    def members(self) -> list[Member]:
        return self._membership.members()

    def bury(self, pid: int) -> None:
        """A process of this machine has ended: nobody need wait to find out. Its supervisor knows first."""
        for member in self._membership.members():
            if member.pid == pid and member.state != "lost":
                self._membership.leave(member.key, member.epoch)
        self._tell_of_change()

    async def on_start(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    async def on_stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self._release()

    async def announce(self, message: Announce, call: Call) -> Table:
        fenced = False
        if message.member is not None:
            fenced = self._take(message.member, message.leaving)
        if not fenced and message.known == self._membership.version and message.hold > 0:
            await self._changed(min(message.hold, LONGEST_HOLD))
        return Table(
            self._membership.version,
            self._membership.members(),
            fenced=fenced,
            settled=self._membership.settled(self._clock.now()),
            born=self._born,
        )

    def _take(self, member: Member, leaving: bool) -> bool:
        if leaving:
            self._membership.leave(member.key, member.epoch)
            verdict = "taken"
        else:
            verdict = self._membership.announce(member, self._clock.now())
        self._tell_of_change()
        if verdict == "full":
            raise Refuse("full", "the directory holds as many members as it can")
        return verdict == "fenced"

    async def _changed(self, seconds: float) -> None:
        held = asyncio.get_running_loop().create_future()
        self._held.add(held)
        timer = self._clock.call_later(seconds, _resolve, held)
        try:
            await held
        finally:
            timer.cancel()
            self._held.discard(held)

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(self._stale_after / 8)
            for member in self._membership.tick(self._clock.now()):
                log.warning("%s is lost: %s", member.instance, "; ".join(member.reasons))
            self._tell_of_change()

    def _tell_of_change(self) -> None:
        if self._membership.version == self._told:
            return
        self._told = self._membership.version
        self._release()
        if self._on_change is not None:
            self._on_change(self._membership.members())

    def _release(self) -> None:
        for held in self._held:
            _resolve(held)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class DirectoryClient:
    """One process's view of the mesh, and its word in it. While no directory answers, the last table serves."""

    def __init__(
        self,
        node: Node,
        directory_endpoint: str,
        member: Callable[[], Member | None] = lambda: None,
        interval: float = 0.5,
        clock: Clock | None = None,
    ) -> None:
        self._node = node
        self._directory = node.ref(directory_endpoint, DIRECTORY)
        self._member = member
        self._interval = interval
        self._clock = clock or SystemClock()
        self._view: dict[tuple[str, str], Member] = {}
        self._version = 0
        self._born = 0
        # Known from an earlier directory, and not yet heard of by the present one, which is young.
        self._inherited: dict[tuple[str, str], Member] = {}
        self._picks: dict[str, int] = {}  # since the table was last heard: what its loads don't show yet
        self._turn = random.randrange(1 << 16)
        self._fenced_epoch = -1
        self._announced: Member | None = None
        self._change: list[Callable[[], None]] = []
        self._loss: list[Callable[[Member], None]] = []
        self._fencing: list[Callable[[], None]] = []
        self._polling: asyncio.Task[None] | None = None
        self.connected = False
        self._heard = self._clock.now()

    @property
    def silence(self) -> float:
        """Seconds since the directory told us its table; it does about every `interval`."""
        return self._clock.now() - self._heard

    # Who is there ---------------------------------------------------------------------------------------

    def members(self, role: str | None = None) -> list[Member]:
        """Everyone alive who plays the role (None: any), ready or not."""
        return [member for member in self._known(role) if member.state != "lost"]

    def lost(self, role: str | None = None) -> list[Member]:
        """Those who fell silent within the last minute and were not replaced."""
        return [member for member in self._known(role) if member.state == "lost"]

    def ready(self, role: str) -> list[Member]:
        return [member for member in self._known(role) if member.state == "ready"]

    def _known(self, role: str | None) -> list[Member]:
        return [member for member in self._view.values() if role is None or member.role == role]

    def pick(self, role: str, key: str | None = None) -> Member | None:
        """A ready member: with a key the same one while it is there, else the one with the least to do."""
        ready = self.ready(role)
        ready = [member for member in ready if not member.candidate] or ready
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

    # What is told to whom -------------------------------------------------------------------------------

    def on_change(self, callback: Callable[[], None]) -> None:
        """Called after someone came, went or changed state. Load and progress change silently."""
        self._change.append(callback)

    def on_lost(self, callback: Callable[[Member], None]) -> None:
        """Called with each member that fell silent, left or was replaced by a newer epoch, as last known."""
        self._loss.append(callback)

    def on_fenced(self, callback: Callable[[], None]) -> None:
        """Called once per epoch of ours that the directory counts as dead: whatever we do is dropped."""
        self._fencing.append(callback)

    # Announcing -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll_for_ever())

    async def stop(self) -> None:
        """Says good-bye, so that others needn't wait to find out."""
        if self._polling is None:
            return
        self._polling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._polling
        self._polling = None
        if self._announced is not None and self.connected:
            with contextlib.suppress(MeshError):
                await self._directory.ask(Announce(self._announced, leaving=True), timeout=0.5)

    def announce_now(self) -> None:
        """Something of ours changed that others should know before the next round."""
        member = self._member()
        if member is not None and self._polling is not None:
            self._announced = member
            with contextlib.suppress(MeshError):
                self._directory.tell(Announce(member))

    async def _poll_for_ever(self) -> None:
        while True:
            began = self._clock.now()
            self._announced = self._member()
            announce = Announce(self._announced, self._version, self._interval)
            try:
                # An unreachable directory shows within a second; the last table serves meanwhile.
                self._take(await self._directory.ask(announce, timeout=self._interval + 1.0))
                pause = CLOSEST_POLLS - (self._clock.now() - began)
            except MeshError as error:
                if self.connected:
                    log.warning("the directory doesn't answer (%s); going on with the last table", error)
                self.connected = False
                pause = self._interval / 2
            if pause > 0:
                await self._clock.sleep(pause)

    def _take(self, table: Table) -> None:
        self.connected = True
        self._heard = self._clock.now()
        self._picks.clear()
        if table.fenced and self._announced is not None and self._announced.epoch != self._fenced_epoch:
            self._fenced_epoch = self._announced.epoch
            _call_all(self._fencing)
        before, after = self._view, {member.key: member for member in table.members}
        if table.born != self._born:
            self._born, self._inherited = table.born, before
        self._inherited = {} if table.settled else {k: m for k, m in self._inherited.items() if k not in after}
        after = {**self._inherited, **after}
        self._view, self._version = after, table.version
        if before.keys() != after.keys() or any(not before[key].same_standing(after[key]) for key in after):
            for member in before.values():
                if member.state != "lost" and _is_over(member, after.get(member.key)):
                    _call_all(self._loss, member)
            _call_all(self._change)


def _is_over(member: Member, successor: Member | None) -> bool:
    return successor is None or successor.state == "lost" or successor.epoch != member.epoch


def _call_all(callbacks: list[Callable[..., None]], *args: object) -> None:
    for callback in list(callbacks):
        try:
            callback(*args)
        except Exception:  # an observer's fault must not silence our heartbeat
            log.exception("a directory callback failed")
