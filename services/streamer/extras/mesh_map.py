"""The mesh as this process sees it, for the page and `specmesh top`: members, their figures and connections.

    directory ─── members ────┐
    introspection ─ figures ──┴▶ MeshMap ─▶ GET /v1/mesh, within PATIENCE, also with dead processes

Rule 1: a view is at most FRESH old and is shared: many readers cost one query.
Rule 2: no process is waited for longer than PATIENCE. A late one is shown with its last figures, and as stuck once it
        has been silent for STUCK_AFTER.
Rule 3: a member that leaves the directory is shown as gone for a while.

Knows no HTTP and no page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from mesh.actor import Home
from mesh.clock import Clock
from mesh.directory.membership import Member
from mesh.errors import Malformed, MeshError, NotRunning, PeerLost, RemoteError, UnknownKind
from services.api.messages import Dying, Kill, Look, Seen
from services.api.phases import ALL
from services.runtime.introspection import INTROSPECTION
from services.streamer.openai.errors import ApiError, bad_value
from services.streamer.openai.fields import BodyFields

FRESH = 0.2  # s
PATIENCE = 0.2  # s
STUCK_AFTER = 0.5  # s
ASK_TIMEOUT = 2.0  # s
KEEP_GONE = 30.0  # s
MOST_GONE = 32
KILLED_ROLES = ("proposer",)
# Figures that callers with different keys may all see: load, and nothing about the texts of others.
HARMLESS = ("running", "waiting")
# Errors of a process without this actor: the process is alive all the same.
NO_INTROSPECTION = (RemoteError, NotRunning, UnknownKind, Malformed)


class MembersView(Protocol):
    """The part of the mesh's directory client that is used here."""

    def members(self, role: str | None = None) -> list[Member]: ...

    def on_change(self, callback: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class _Known:
    """One instance at one of its lives."""

    member: Member
    lives: int
    state: str
    since: float
    heard: float
    seen: Seen | None = None
    round_trip: float = 0.0
    # Time of the oldest unanswered query; None: all are answered.
    silent: float | None = None
    asking: asyncio.Task[None] | None = None

    @property
    def is_gone(self) -> bool:
        return self.state == "gone"


class MeshMap:
    """One in a process. `discreet`: there are several callers, which must not see figures of each other's drafts."""

    def __init__(
        self,
        directory: MembersView,
        node: Home,
        *,
        instance: str,
        stale_after: float,
        clock: Clock,
        demo: bool = False,
        discreet: Callable[[], bool] = lambda: False,
    ) -> None:
        self.demo = demo
        self._directory = directory
        self._node = node
        self._instance = instance
        self._stale_after = stale_after
        self._clock = clock
        self._several = discreet
        self._known: dict[tuple[str, str], _Known] = {}
        self._view: dict[str, Any] = {}
        self._seen_at = -FRESH
        self._looking: asyncio.Task[dict[str, Any]] | None = None
        directory.on_change(self._changed)

    async def look(self) -> dict[str, Any]:
        """The body of /v1/mesh."""
        if self._clock.now() - self._seen_at < FRESH:
            return self._view
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="mesh-map")
            self._looking.add_done_callback(self._looked)
        # A reader that disconnects doesn't cancel the query for the others.
        return await asyncio.shield(self._looking)

    def _looked(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._looking = None

    async def seen(self, role: str) -> dict[tuple[str, int], Seen]:
        """What each process of the role, by instance and epoch, answered last."""
        await self.look()
        there = [each for each in self._known.values() if each.member.role == role and not each.is_gone]
        return {(each.member.instance, each.member.epoch): each.seen for each in there if each.seen is not None}

    async def kill(self, role: str) -> dict[str, Any]:
        """Ends one process of that role as kill -9 would. Doesn't wait for its end."""
        assert self.demo and role in KILLED_ROLES
        ready = [member for member in self._directory.members(role) if member.state == "ready"]
        if not ready:
            raise ApiError(503, f"No {role} is ready; it may be restarting", code=f"no_{role}", retry_after=1)
        member = ready[0]
        try:
            answer = await self._node.ref(member.endpoint, INTROSPECTION).ask(Kill(), timeout=ASK_TIMEOUT)
        except PeerLost:
            # It died before its answer was sent.
            answer = Dying(pid=member.pid)
        except RemoteError as error:
            raise ApiError(409, f"{member.instance} lives on: {error.message}", code=error.reason) from error
        except MeshError as error:
            raise ApiError(503, f"{member.instance} can't be reached", code=error.reason, retry_after=1) from error
        assert isinstance(answer, Dying)
        return {"role": role, "instance": member.instance, "pid": answer.pid}

    def close(self) -> None:
        for known in self._known.values():
            if known.asking is not None:
                known.asking.cancel()

    # A query ----------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Runs without readers, too, so that restarts and times of state changes are known."""
        self._follow(self._directory.members())
        now = self._clock.now()
        for known in self._known.values():
            self._judge(known, now)

    async def _look(self) -> dict[str, Any]:
        self._changed()
        asking = [self._ask(known) for known in self._known.values() if not known.is_gone]
        if asking:
            await asyncio.wait(asking, timeout=PATIENCE)
        self._changed()
        now = self._clock.now()
        self._view, self._seen_at = self._body(now), now
        return self._view

    def _follow(self, members: Iterable[Member]) -> None:
        """Compares the members with those seen before."""
        now, there = self._clock.now(), {member.key: member for member in members}
        for key, member in there.items():
            known = self._known.get(key)
            if known is None or known.member.epoch != member.epoch:
                lives = 1 if known is None else known.lives + 1
                # New members come last.
                self._known.pop(key, None)
                self._known[key] = _Known(member, lives, "starting", now, now)
            else:
                known.member = member
        for key, known in self._known.items():
            if key not in there and not known.is_gone:
                known.state, known.since = "gone", now
        gone = [key for key, known in self._known.items() if known.is_gone]
        for place, key in enumerate(gone):
            if now - self._known[key].since > KEEP_GONE or place < len(gone) - MOST_GONE:
                del self._known[key]

    def _ask(self, known: _Known) -> asyncio.Task[None]:
        if known.asking is None:
            known.asking = asyncio.create_task(self._hear(known), name="mesh-look")
        return known.asking

    async def _hear(self, known: _Known) -> None:
        began = self._clock.now()
        known.silent = began if known.silent is None else known.silent
        try:
            answer = await self._node.ref(known.member.endpoint, INTROSPECTION).ask(Look(), timeout=ASK_TIMEOUT)
        except NO_INTROSPECTION:
            answer = None
        except MeshError:
            return
        finally:
            known.asking = None
        known.heard, known.silent = self._clock.now(), None
        known.round_trip = known.heard - began
        if isinstance(answer, Seen):
            known.seen = answer

    def _judge(self, known: _Known, now: float) -> None:
        if known.is_gone:
            return
        silence = 0.0 if known.silent is None else now - known.silent
        state = state_of(known.member, silence, self._stale_after)
        if state != known.state:
            known.state, known.since = state, now

    # What is shown ----------------------------------------------------------------------------------------

    def _body(self, now: float) -> dict[str, Any]:
        known = sorted(self._known.values(), key=lambda each: each.member.key)
        return {
            "now": round(time.time(), 3),
            "demo": self.demo,
            "members": [self._member(each, now) for each in known],
            "links": self._links(known),
        }

    def _is_discreet(self) -> bool:
        return not self.demo and self._several()

    def _member(self, known: _Known, now: float) -> dict[str, Any]:
        member, seen = known.member, known.seen or Seen()
        figures = figures_of(seen)
        if self._is_discreet():
            figures = {name: value for name, value in figures.items() if name in HARMLESS}
        return {
            "role": member.role,
            "instance": member.instance,
            "phase": "" if member.phase == ALL else member.phase,
            "pid": seen.pid or member.pid,
            "state": known.state,
            "reasons": member.reasons,
            "heard_ago_s": round(now - known.heard, 3),
            "since_s": round(now - known.since, 3),
            "restarts": known.lives - 1,
            "load": member.load,
            "serves": member.serves,
            "queue": int(seen.figures.get("waiting", 0)),
            "figures": figures,
            "sources": [] if self._is_discreet() else sources_of(seen),
        }

    def _links(self, known: list[_Known]) -> list[dict[str, Any]]:
        there = [each for each in known if not each.is_gone]
        names = {each.member.endpoint: each.member.instance for each in there}
        links = [
            _link(self._instance, each.member.instance, each.round_trip, each.state != "stuck")
            for each in there
            if each.member.instance != self._instance
        ]
        for each in there:
            for card in (each.seen or Seen()).links:
                if card.endpoint in names:
                    links.append(_link(each.member.instance, names[card.endpoint], card.round_trip, card.open))
        return links


def parse_kill(values: dict[str, Any]) -> str:
    """The role to kill, from a body."""
    fields = BodyFields(values)
    role = fields.choice("role", KILLED_ROLES)
    fields.nothing_else()
    if role is None:
        raise bad_value("role", "is missing", "missing_required_parameter")
    return role


def _link(begin: str, end: str, round_trip: float, is_open: bool) -> dict[str, Any]:
    trip = round(round_trip * 1e3, 3) if round_trip > 0 else None
    return {"from": begin, "to": end, "round_trip_ms": trip, "open": is_open}


def state_of(member: Member, silence: float, stale_after: float) -> str:
    """ready | starting | draining | stuck: the directory's state, or stuck if the member doesn't answer us."""
    if member.state in ("starting", "draining"):
        return member.state
    stuck = member.state != "ready" or member.progress_age > stale_after or silence > STUCK_AFTER
    return "stuck" if stuck else "ready"


def figures_of(seen: Seen) -> dict[str, float]:
    """The figures, and the rates of totals; no rates without a recent earlier query."""
    figures = {name: round(value, 4) for name, value in seen.figures.items()}
    grown = _grown(seen)
    for name, growth in grown.items():
        if ":" not in name:
            figures[f"{name}_per_s"] = round(growth / seen.span, 3)
    if steps := grown.get("steps"):
        figures["accepted_per_step"] = round(grown.get("accepted", 0.0) / steps, 3)
    return figures


def sources_of(seen: Seen) -> list[dict[str, Any]]:
    """Counts by source of drafts, since the process began and in the last seconds, from totals of the form
    `accepted:suffix`."""
    grown = _grown(seen)
    names = dict.fromkeys(name.partition(":")[2] for name in seen.totals if ":" in name)
    return [
        {
            "name": name,
            **{what: int(seen.totals.get(f"{what}:{name}", 0)) for what in ("drafts", "drafted", "accepted")},
            **{f"{what}_lately": int(grown.get(f"{what}:{name}", 0)) for what in ("drafts", "drafted", "accepted")},
        }
        for name in names
    ]


def _grown(seen: Seen) -> dict[str, float]:
    if seen.span <= 0:
        return {}
    # A total without an earlier value began since.
    return {name: total - seen.earlier.get(name, 0.0) for name, total in seen.totals.items()}
