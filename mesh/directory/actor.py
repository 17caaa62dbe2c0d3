"""The actor that holds the directory's table. Soft state: members announce themselves about twice a second and get the
table back; a directory that restarts knows everything again after one round.

An announcement is an ask that is held until something changes or the interval is over (a long poll), so a change
reaches everyone within a round trip. What is decided is in mesh/directory/membership.py.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from mesh.actor import Actor, Call
from mesh.clock import Clock, SystemClock
from mesh.directory.membership import MAX_MEMBERS, Member, Membership
from mesh.errors import Refuse

log = logging.getLogger(__name__)

DIRECTORY = "directory"
LONGEST_HOLD = 5.0  # s


class Announce(msgspec.Struct, frozen=True, array_like=True):
    """Answered when the table's version isn't `known`, or after `hold`. Without a member it only asks for the table."""

    member: Member | None
    known: int = 0
    hold: float = 0.0  # s
    leaving: bool = False


class Table(msgspec.Struct, frozen=True, array_like=True):
    """All that the directory knows. `fence` above 0: the announced epoch counts as dead, and a new one has to be larger
    than that; `replaced`: somebody else has announced a newer epoch of the same instance."""

    version: int
    members: Annotated[list[Member], Meta(max_length=2048)]
    fence: int = 0
    replaced: bool = False
    settled: bool = True  # False: the directory has just started, and members may be missing
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
        # Random, so that no version of an earlier directory looks like one of ours, whatever the clock says.
        self._born = secrets.randbits(52)
        self._membership = Membership(self._clock.now(), stale_after=stale_after, version=self._born)
        self._on_change = on_change
        self._told = self._membership.version
        # Epochs of those that were told to be refused.
        self._refused: dict[tuple[str, str], int] = {}
        self._held: set[asyncio.Future[None]] = set()
        self._ticking: asyncio.Task[None] | None = None

    def members(self) -> list[Member]:
        return self._membership.members()

    def bury(self, instance: str, pid: int) -> None:
        """A process of this machine has ended; its supervisor knows first. The pid alone may be another host's, too."""
        for member in self._membership.members():
            if (member.instance, member.pid) == (instance, pid) and member.state != "lost":
                self._membership.leave(member.key, member.epoch)
        self._tell_of_change()

    async def on_start(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    async def on_stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self._release()

    async def announce(self, message: Announce, call: Call) -> Table:
        fence, replaced = 0, False
        if message.member is not None:
            fence, replaced = self._take(message.member, message.leaving)
        if not fence and message.known == self._membership.version and message.hold > 0:
            await self._changed(min(message.hold, LONGEST_HOLD))
        return Table(
            self._membership.version,
            self._membership.members(),
            fence=fence,
            replaced=replaced,
            settled=self._membership.settled(self._clock.now()),
            born=self._born,
        )

    def _take(self, member: Member, leaving: bool) -> tuple[int, bool]:
        """The fence and whether the member was replaced; 0 when it was taken."""
        if leaving:
            self._membership.leave(member.key, member.epoch)
            verdict = "taken"
        else:
            verdict = self._membership.announce(member, self._clock.now())
            self._tell_of_refusal(member)
        self._tell_of_change()
        if verdict == "full":
            raise Refuse("full", "the directory holds as many members as it can")
        return self._membership.fence(member) if verdict == "fenced" else (0, False)

    def _tell_of_refusal(self, member: Member) -> None:
        """Once a process, however often it announces itself."""
        if (reason := self._membership.refusal(member)) and self._refused.get(member.key) != member.epoch:
            self._refused[member.key] = member.epoch
            if len(self._refused) > MAX_MEMBERS:
                del self._refused[next(iter(self._refused))]
            log.error("%s is %s", member.instance, reason)

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
