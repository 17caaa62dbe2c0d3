"""The directory's table as a value: members announced, lost, fenced. Knows no sockets, tasks or clocks.

Rule 1: a member is known by (role, instance). A higher epoch replaces it; a lower one is fenced.
Rule 2: a member not heard of for `stale_after` is lost: its work may have been given to others, so its epoch is fenced,
        and when it announces itself again it is told so. One that was never ready has no work to give away, and
        importing, loading and compiling can keep it from announcing itself: it is forgotten after ten times that, and
        may come back.
Rule 3: when the ticks stopped (this process was suspended or starved), everyone gets that time on top.
Rule 4: members of a role are interchangeable. One that `serves` something else than those that have been ready before
        it is kept unready, with the reason, until they are gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_MEMBERS = 1024
MAX_FENCES = 4096
MAX_SERVES = 100
MAX_REASON = 300

# `unready` was ready and isn't now (stuck, or a role is missing); only the directory says `lost`.
State = Literal["starting", "ready", "unready", "draining", "lost"]

# A starting process may be silent this many times longer.
STARTING_TAKES = 10


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One instance of a role. Field order is wire order: append, never reorder."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    instance: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Annotated[str, Meta(max_length=512)]
    epoch: Annotated[int, Meta(ge=0)]
    state: State = "starting"
    progress_age: float = 0.0  # s since the last completed piece of work while work waits
    load: Annotated[int, Meta(ge=0)] = 0
    reasons: Annotated[list[Annotated[str, Meta(max_length=MAX_REASON)]], Meta(max_length=8)] = []
    metrics: Annotated[str, Meta(max_length=256)] = ""  # URL of its health server
    pid: int = 0
    # What it does its work with; "": not known yet, or the same for all.
    serves: Annotated[str, Meta(max_length=MAX_SERVES)] = ""
    # The part of its role's work that it takes; "": not known yet, or all of it.
    phase: Annotated[str, Meta(max_length=16)] = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.role, self.instance

    def looks_like(self, other: Member) -> bool:
        """Whether the two differ only in figures that change all the time."""
        return self._lasting() == other._lasting()

    def _lasting(self) -> tuple[object, ...]:
        return (self.key, self.endpoint, self.epoch, self.state, self.reasons, self.metrics, self.serves, self.phase)


@dataclass(slots=True)
class _Entry:
    member: Member
    heard: float
    was_ready: bool
    refused: bool = False

    @property
    def stands(self) -> bool:
        """Others have to serve what this one does."""
        return self.was_ready and not self.refused and self.member.state != "lost" and bool(self.member.serves)


class Membership:
    """The directory's table. `version` grows with every change others should hear of at once."""

    def __init__(self, now: float, *, stale_after: float = 2.0, keep_lost: float = 60.0, version: int = 0) -> None:
        self.version = version
        self._stale_after = stale_after
        self._keep_lost = keep_lost
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._fences: dict[tuple[str, str], int] = {}
        self._ticked = self._born = now

    def members(self) -> list[Member]:
        """All that are known, the lost among them."""
        return [entry.member for entry in self._entries.values()]

    def settled(self, now: float) -> bool:
        """Whether everyone alive has had the time to announce itself."""
        return now - self._born >= self._stale_after

    def announce(self, member: Member, now: float) -> Literal["taken", "fenced", "full"]:
        key, entry = member.key, self._entries.get(member.key)
        if self.fence(member)[0]:
            return "fenced"
        if entry is None and len(self._entries) >= MAX_MEMBERS and not self._drop_a_lost_one():
            return "full"
        shown = self._checked(member)
        refused, member = shown is not member, shown
        again = entry is not None and entry.member.epoch == member.epoch
        was_ready = member.state != "starting" or (again and entry is not None and entry.was_ready)
        if entry is None or not entry.member.looks_like(member):
            self.version += 1
        self._entries[key] = _Entry(member, now, was_ready, refused)
        return "taken"

    def _checked(self, member: Member) -> Member:
        """The member as others are to see it: not ready where it serves something else than those before it."""
        if not member.serves or member.state != "ready":
            return member
        for entry in self._entries.values():
            first = entry.member
            if first.role == member.role and first.key != member.key and entry.stands and first.serves != member.serves:
                said = f"refused: it serves {member.serves}, but {first.instance} serves {first.serves}"
                return msgspec.structs.replace(member, state="unready", reasons=[said[:MAX_REASON]])
        return member

    def refusal(self, member: Member) -> str:
        """Why a member is kept unready by rule 4; "": it isn't."""
        entry = self._entries.get(member.key)
        return entry.member.reasons[0] if entry is not None and entry.refused else ""

    def fence(self, member: Member) -> tuple[int, bool]:
        """The epoch that this member's has to exceed (0: it need not), and whether another process has replaced it."""
        entry, fence = self._entries.get(member.key), self._fences.get(member.key, -1)
        if entry is not None and entry.member.epoch > member.epoch:
            return max(entry.member.epoch, fence), entry.member.state != "lost"
        return (max(1, fence), False) if member.epoch <= fence else (0, False)

    def leave(self, key: tuple[str, str], epoch: int) -> None:
        """A member has left. What it still announces is fenced."""
        entry = self._entries.get(key)
        if entry is not None and entry.member.epoch <= epoch:
            del self._entries[key]
            self._fence(key, epoch)
            self.version += 1

    def tick(self, now: float) -> list[Member]:
        """The members lost by now. To be called several times within `stale_after`."""
        asleep = now - self._ticked
        self._ticked = now
        if asleep > self._stale_after / 2:
            for entry in self._entries.values():
                entry.heard += asleep
        lost: list[Member] = []
        for key, entry in list(self._entries.items()):
            silent = now - entry.heard
            if entry.member.state == "lost":
                if silent > self._stale_after + self._keep_lost:
                    del self._entries[key]
                    self.version += 1
            elif entry.was_ready and silent > self._stale_after:
                self._alive_to_lost(key, entry, silent)
                lost.append(entry.member)
            elif silent > self._stale_after * STARTING_TAKES:
                del self._entries[key]
                self.version += 1
        return lost

    def _alive_to_lost(self, key: tuple[str, str], entry: _Entry, silent: float) -> None:
        self._fence(key, entry.member.epoch)
        said = [f"not heard of for {silent:.1f} s"]
        entry.member = msgspec.structs.replace(entry.member, state="lost", progress_age=silent, reasons=said)
        self.version += 1

    def _fence(self, key: tuple[str, str], epoch: int) -> None:
        self._fences.pop(key, None)
        self._fences[key] = epoch
        if len(self._fences) > MAX_FENCES:
            del self._fences[next(iter(self._fences))]

    def _drop_a_lost_one(self) -> bool:
        for key, entry in self._entries.items():
            if entry.member.state == "lost":
                del self._entries[key]
                return True
        return False


def chosen(instances: Iterable[str], key: str) -> str | None:
    """Rendezvous hashing: a key stays with its instance while it is there; when one leaves, only its keys move."""

    def score(instance: str) -> bytes:
        return hashlib.blake2b(f"{key}\0{instance}".encode(), digest_size=8).digest()

    return max(instances, key=score, default=None)


def choose(members: Iterable[Member], key: str) -> Member | None:
    """The member of the chosen instance."""
    named = {member.instance: member for member in members}
    instance = chosen(named, key)
    return None if instance is None else named[instance]
