"""Ready or not, and why: from what the directory says of every role, and what the streamer has found itself. Pure.

Not ready (503) without a ready tokenizer or worker, while draining, when no worker answers (probe.py), or when the
directory's table is old: requests go on with that table, but nothing vouches for it. Without proposers the mesh
answers the same text more slowly: ready (200), with the reason under `degraded`. So are other streamers that don't
serve: connections that the kernel gives to them aren't answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mesh.directory.membership import Member

NEEDED = ("tokenizer", "worker")
WISHED = ("proposer",)
DOOR = "streamer"
# A table comes twice a second.
SILENT_AFTER = 5.0  # seconds


@dataclass(slots=True)
class MeshReadiness:
    reasons: list[str] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    roles: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def status(self) -> int:
        return 503 if self.reasons else 200

    def body(self) -> dict[str, Any]:
        state = "unready" if self.reasons else "degraded" if self.degraded else "ready"
        return {"status": state, "reasons": self.reasons, "degraded": self.degraded, "roles": self.roles}


def readiness(
    members: Mapping[str, Sequence[Member]],
    *,
    draining: bool,
    stale_after: float,
    silence: float = 0.0,
    own_reasons: Sequence[str] = (),
    own_name: str = "",
) -> MeshReadiness:
    """`members`: what the directory said of each role `silence` seconds ago. A member without progress for
    `stale_after` is stuck. `own_name`: the streamer that says this."""
    result = MeshReadiness(reasons=list(own_reasons))
    if draining:
        result.reasons.append("streamer: draining")
    if silence > SILENT_AFTER:
        result.reasons.append(f"directory: silent for {silence:.1f} s")
    for role in NEEDED:
        result.reasons += _judge(role, members.get(role, ()), stale_after, result)
    for role in WISHED:
        result.degraded += _judge(role, members.get(role, ()), stale_after, result)
    doors = members.get(DOOR, ())
    _judge(DOOR, doors, stale_after, result)
    result.degraded += [
        f"{DOOR}: {each.instance} is {_state(each, stale_after)}"
        for each in doors
        if each.instance != own_name and each.state in ("unready", "lost")
    ]
    return result


def _judge(role: str, members: Sequence[Member], stale_after: float, result: MeshReadiness) -> list[str]:
    """Why a role cannot do its work; nothing when one of its instances can."""
    states = {(each.instance, each.epoch): _state(each, stale_after) for each in members}
    result.roles[role] = [
        {"instance": each.instance, "state": states[each.instance, each.epoch], "load": each.load} for each in members
    ]
    if any(state == "ready" for state in states.values()):
        return []
    if not states:
        return [f"{role}: none is there"]
    return [f"{role}: {instance} is {state}" for (instance, _), state in states.items()]


def _state(member: Member, stale_after: float) -> str:
    if member.state == "ready" and member.progress_age > stale_after:
        return f"stuck (no progress for {member.progress_age:.1f} s)"
    return f"{member.state} ({'; '.join(member.reasons)})" if member.reasons else member.state
