"""The mesh as this process sees it, for a page or a terminal: who is there, what each does, which lines there are.

    directory ─ who is there ─┐
    their windows ─ figures ──┴▶ MeshMap ─▶ GET /v1/mesh, within PATIENCE whatever is dead

Rule 1: a view is at most FRESH old and made once for all who ask: many pages cost one look.
Rule 2: nobody is waited for longer than PATIENCE. Whose answer is still out is shown with what it said last, and as
        stuck once it has been silent for STUCK_AFTER.
Rule 3: who leaves the directory is shown as gone for a while, so that one can see it go.

Knows no HTTP and no page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from mesh.clock import Clock
from mesh.errors import Malformed, MeshError, NotRunning, PeerLost, RemoteError, UnknownKind
from mesh.membership import Member
from mesh.node import Node
from services.api.messages import Dying, Kill, Look, Seen
from services.runtime.introspection import WINDOW
from services.streamer.errors import ApiError, bad_value
from services.streamer.fields import Fields

FRESH = 0.2  # s
PATIENCE = 0.2  # s
STUCK_AFTER = 0.5  # s
ASK_TIMEOUT = 2.0  # s
KEEP_GONE = 30.0  # s
MOST_GONE = 32
KILLED_ROLES = ("proposer",)
# What callers who must not see each other's traffic may all see: how much there is to do, and nothing of how it goes.
HARMLESS = ("running", "waiting")
# A window nobody opened is an answer, too: its process lives.
NO_WINDOW = (RemoteError, NotRunning, UnknownKind, Malformed)


class DirectoryView(Protocol):
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
    # When the oldest question was asked that isn't answered; None: there is none.
    silent: float | None = None
    asking: asyncio.Task[None] | None = None

    @property
    def is_gone(self) -> bool:
        return self.state == "gone"


class MeshMap:
    """One in a process. `discreet`: there are several callers, and none may learn how the others' drafts do."""

    def __init__(
        self,
        directory: DirectoryView,
        node: Node,
        *,
        instance: str,
        stale_after: float,
        clock: Clock,
        demo: bool = False,
        discreet: bool = False,
    ) -> None:
        self.demo = demo
        self._directory = directory
        self._node = node
        self._instance = instance
        self._stale_after = stale_after
        self._clock = clock
        self._discreet = discreet and not demo
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
        # One reader who leaves doesn't end the look of the others.
        return await asyncio.shield(self._looking)

    def _looked(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._looking = None

    async def kill(self, role: str) -> dict[str, Any]:
        """One of that role ends as by kill -9; the one to whom it is said, and nobody waits for its death."""
        assert self.demo and role in KILLED_ROLES
        ready = [member for member in self._directory.members(role) if member.state == "ready"]
        if not ready:
            raise ApiError(503, f"No {role} is ready; it may be restarting", code=f"no_{role}", retry_after=1)
        member = ready[0]
        try:
            answer = await self._node.ref(member.endpoint, WINDOW).ask(Kill(), timeout=ASK_TIMEOUT)
        except PeerLost:
            # It died before its last word was out.
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

    # A look -----------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Also while nobody looks: who has restarted, and since when everyone is what he is, is known all the same."""
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
        """Who is there now, and who isn't any more."""
        now, there = self._clock.now(), {member.key: member for member in members}
        for key, member in there.items():
            known = self._known.get(key)
            if known is None or known.member.epoch != member.epoch:
                lives = 1 if known is None else known.lives + 1
                # Behind the others, as everyone new.
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
            answer = await self._node.ref(known.member.endpoint, WINDOW).ask(Look(), timeout=ASK_TIMEOUT)
        except NO_WINDOW:
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

    def _member(self, known: _Known, now: float) -> dict[str, Any]:
        member, seen = known.member, known.seen or Seen()
        figures = figures_of(seen)
        if self._discreet:
            figures = {name: value for name, value in figures.items() if name in HARMLESS}
        return {
            "role": member.role,
            "instance": member.instance,
            "pid": seen.pid or member.pid,
            "state": known.state,
            "reasons": member.reasons,
            "heard_ago_s": round(now - known.heard, 3),
            "since_s": round(now - known.since, 3),
            "restarts": known.lives - 1,
            "queue": int(seen.figures.get("waiting", 0)),
            "figures": figures,
            "sources": [] if self._discreet else sources_of(seen),
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
    """Who is to be killed: the role."""
    fields = Fields(values)
    role = fields.choice("role", KILLED_ROLES)
    fields.nothing_else()
    if role is None:
        raise bad_value("role", "is missing", "missing_required_parameter")
    return role


def _link(begin: str, end: str, round_trip: float, is_open: bool) -> dict[str, Any]:
    trip = round(round_trip * 1e3, 3) if round_trip > 0 else None
    return {"from": begin, "to": end, "round_trip_ms": trip, "open": is_open}


def state_of(member: Member, silence: float, stale_after: float) -> str:
    """ready | starting | draining | stuck: the word of the directory, unless the member doesn't answer us."""
    if member.state in ("starting", "draining"):
        return member.state
    stuck = member.state != "ready" or member.progress_age > stale_after or silence > STUCK_AFTER
    return "stuck" if stuck else "ready"


def figures_of(seen: Seen) -> dict[str, float]:
    """What was shown, and how fast what only grows did grow; nothing of that where nobody looked a moment before."""
    figures = {name: round(value, 4) for name, value in seen.figures.items()}
    grown = _grown(seen)
    for name, growth in grown.items():
        if ":" not in name:
            figures[f"{name}_per_s"] = round(growth / seen.span, 3)
    if steps := grown.get("steps"):
        figures["accepted_per_step"] = round(grown.get("accepted", 0.0) / steps, 3)
    return figures


def sources_of(seen: Seen) -> list[dict[str, Any]]:
    """Where drafts came from, with counts since the process began and what of them is of the last moments: totals of
    the form `accepted:suffix`."""
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
    # What wasn't there the last time began since.
    return {name: total - seen.earlier.get(name, 0.0) for name, total in seen.totals.items()}
