"""What is to be done so that those processes run that should: values in, values out.

    Desired + Instances ──decide──▶ Launch, Drain, KillNow, Remove, KeepOld

    waiting ──(all of the roles before it were ready, or failed)──▶ running ──told──▶ draining ──exit──▶ ended
                                                                      │ exit
                                                                      ▼
                     waiting until `start_at`, or failed (crashes.py); on a cluster ended, and another is started

It knows no process, signal, socket or clock. `up` acts on it for the processes of one machine
(services/runtime/children.py), the keeper for those of a cluster (services/placement/keeper.py). Both note in the
instances what happened, and ask again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# placed: a cluster was asked for it, and hasn't answered; dead: it is gone without having drained.
InstanceState = Literal["waiting", "placed", "running", "draining", "failed", "ended", "dead"]
_GONE = ("ended", "dead")
# Between two SIGKILLs, should the first not have been heard.
KILL_AGAIN = 1.0  # s


@dataclass(frozen=True, slots=True)
class Role:
    """How many there should be. Those of a higher stage drain first; those of the roles in `after` start first."""

    count: int
    stage: int = 0
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Desired:
    roles: Mapping[str, Role]
    # To be replaced, one after the other, while the rest of its role serves.
    old: Collection[str] = ()
    stopping: bool = False
    # The largest number that an instance of each role has had: one that is gone is followed by another under a new
    # name. None: each is started again in its place, under its name.
    numbers: Mapping[str, int] | None = None
    # How long one that was ready may be without progress before it is killed; 0: for ever.
    kill_stuck_after: float = 0.0  # s


@dataclass(slots=True)
class Instance:
    """A process as it is seen."""

    role: str
    name: str
    state: InstanceState = "waiting"
    ready: bool = False
    was_ready: bool = False  # since it was last started
    load: int = 0
    homeless: bool = False  # it waits for a machine with room
    start_at: float | None = None  # once it has crashed
    unready_since: float | None = None
    fenced: bool = False  # others have taken its work
    kill_at: float | None = None

    def starts(self) -> None:
        self.state, self.start_at = "running", None

    def is_heard(self, ready: bool, now: float) -> None:
        """What it says of itself."""
        if self.state != "running":
            return
        self.ready = ready
        if ready:
            self.was_ready, self.unready_since = True, None
        elif self.was_ready and self.unready_since is None:
            self.unready_since = now

    def drains(self, until: float | None = None) -> None:
        self.state, self.ready, self.kill_at = "draining", False, until

    def ends(self, state: InstanceState, start_at: float | None = None) -> None:
        self.state, self.start_at = state, start_at
        self.ready = self.was_ready = self.fenced = False
        self.unready_since = self.kill_at = None


@dataclass(frozen=True, slots=True)
class Launch:
    role: str
    name: str


@dataclass(frozen=True, slots=True)
class Drain:
    """`why`: for a person to read; empty where that is clear."""

    name: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class KillNow:
    name: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """Nothing is left of it, or has been started yet."""

    name: str


@dataclass(frozen=True, slots=True)
class KeepOld:
    """The old ones can't be replaced."""

    why: str


Action = Launch | Drain | KillNow | Remove | KeepOld


def decide(wanted: Desired, seen: Sequence[Instance], now: float) -> list[Action]:
    out: list[Action] = [Remove(each.name) for each in seen if each.state in _GONE]
    left = [each for each in seen if each.state not in _GONE]
    out += _kill(wanted, left, now)
    if wanted.stopping:
        return [*out, *_stop(wanted, left)]
    for role in wanted.roles:
        out += _start(wanted, role, left, now)
        out += _drain(wanted, role, left)
    return out


def next_wake(wanted: Desired, seen: Sequence[Instance], now: float) -> float | None:
    """Seconds until time alone changes the decision; None: it doesn't."""
    times = [each.kill_at for each in seen if each.kill_at is not None]
    if not wanted.stopping:
        times += [each.start_at for each in seen if each.start_at is not None]
        times += [
            each.unready_since + wanted.kill_stuck_after
            for each in seen
            if wanted.kill_stuck_after and each.unready_since is not None and each.kill_at is None
        ]
    return max(0.0, min(times) - now) if times else None


# Ending ---------------------------------------------------------------------------------------------------------------


def _stop(wanted: Desired, left: Sequence[Instance]) -> Iterator[Action]:
    """One stage after the other, the highest first."""
    live = [each for each in left if each.state not in ("waiting", "failed")]
    yield from (Remove(each.name) for each in left if each not in live)
    highest = max((wanted.roles[each.role].stage for each in live), default=0)
    for each in live:
        if wanted.roles[each.role].stage == highest and each.state != "draining" and each.kill_at is None:
            yield Drain(each.name)


def _kill(wanted: Desired, left: Sequence[Instance], now: float) -> Iterator[Action]:
    for each in left:
        if each.kill_at is not None:
            if now >= each.kill_at:
                yield KillNow(each.name)
        elif each.state == "running" and not wanted.stopping:
            if each.fenced:
                # When it wakes it ends by itself: there is nothing to wait for.
                yield KillNow(each.name, "fenced: killed, to be started again")
            elif each.unready_since is not None and 0 < wanted.kill_stuck_after <= (stuck := now - each.unready_since):
                yield KillNow(each.name, f"no progress for {stuck:.1f} s: killed, to be started again")


# As many as wanted ----------------------------------------------------------------------------------------------------


def _start(wanted: Desired, role: str, left: Sequence[Instance], now: float) -> Iterator[Action]:
    ours = [each for each in left if each.role == role]
    ready_to_start = all(_is_settled(each) for each in left if each.role in wanted.roles[role].after)
    for each in ours:
        due = now >= each.start_at if each.start_at is not None else each.state == "waiting" and ready_to_start
        if due:
            yield Launch(role, each.name)
    if wanted.numbers is not None:
        active = [each for each in ours if each.state != "draining"]
        count = wanted.roles[role].count
        missing = max(count - len(active), int(_is_one_more_due(active, len(active) < len(ours), count, wanted.old)))
        first = wanted.numbers.get(role, 0) + 1
        yield from (Launch(role, f"{role}-{first + more}") for more in range(missing))


def _is_settled(instance: Instance) -> bool:
    """A failed one isn't waited for: those after it start and say themselves what they miss."""
    return instance.was_ready or instance.state == "failed"


def _drain(wanted: Desired, role: str, left: Sequence[Instance]) -> Iterator[Action]:
    ours = [each for each in left if each.role == role]
    active = [each for each in ours if each.state != "draining"]
    old = [each for each in active if each.name in wanted.old]
    count, in_place = wanted.roles[role].count, wanted.numbers is None
    # Without room for one more, the old one ends before its successor starts.
    makes_room = in_place or any(each.homeless for each in active)
    if old and makes_room and count == 1:
        yield KeepOld(f"the only {role} is not replaced: requests would have to wait")
    elif old and in_place and any(each.state == "failed" for each in active):
        yield KeepOld(f"no other {role} is replaced: one of them doesn't start again")
    elif old and (in_place or len(active) > count) and (first := _next_to_replace(active, old, count, makes_room)):
        yield Drain(first.name, "is being replaced: draining")
    else:
        yield from (Drain(each.name) for each in _surplus(active, count + bool(old)))


def _is_one_more_due(active: Sequence[Instance], draining: bool, count: int, old: Collection[str]) -> bool:
    """Whether the one that replaces the next is to be started."""
    fresh = [each for each in active if each.name not in old]
    return len(fresh) < len(active) == count and not draining and all(each.ready for each in fresh)


def _next_to_replace(
    active: Sequence[Instance], old: Sequence[Instance], count: int, makes_room: bool
) -> Instance | None:
    # One that isn't ready serves nobody.
    first = min(old, key=lambda each: (each.ready, each.load))
    others = sum(each.ready for each in active if each is not first)
    return first if others >= (max(1, count - 1) if makes_room else count) else None


def _surplus(active: Sequence[Instance], count: int) -> Sequence[Instance]:
    """Those to end: not running ones first, then not ready ones, then the idlest."""
    order = sorted(active, key=lambda each: (each.state == "running", each.ready, each.load, -number_of(each.name)))
    return order[: max(0, len(active) - count)]


def number_of(name: str) -> int:
    number = name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
