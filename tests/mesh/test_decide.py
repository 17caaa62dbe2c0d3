"""What is to be done about processes, as a table of situations, for one machine and for a cluster."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.supervisor.decide import (
    Action,
    Desired,
    Drain,
    Instance,
    InstanceState,
    KeepOld,
    KillNow,
    Launch,
    Remove,
    Role,
    decide,
    next_wake,
    number_of,
)

ROLES = {
    "tokenizer": Role(1), "worker": Role(2, stage=1), "streamer": Role(1, stage=2, after=("tokenizer",)),
}  # fmt: skip
WORKERS = {"worker": Role(2, stage=1)}
ONE, STAYS = {"worker": Role(1)}, "the only worker is not replaced: requests would have to wait"


def one(name: str, state: InstanceState = "running", **more: object) -> Instance:
    return Instance(name.rpartition("-")[0], name, state, **more)  # type: ignore[arg-type]


def ready(name: str, **more: object) -> Instance:
    return one(name, ready=True, was_ready=True, **more)


def here(roles: dict[str, Role] = WORKERS, **more: object) -> Desired:
    """On one machine: each is started again in its place."""
    return Desired(roles, **more)  # type: ignore[arg-type]


def cluster(roles: dict[str, Role] = WORKERS, last: int = 2, **more: object) -> Desired:
    return Desired(roles, numbers={"worker": last}, **more)  # type: ignore[arg-type]


def every(state: InstanceState, *names: str) -> list[Instance]:
    return [one(name, state) for name in names]


ALL = ("tokenizer-1", "worker-1", "worker-2", "streamer-1")
REPLACES = "is being replaced: draining"
FENCED = "fenced: killed, to be started again"

# What the situation is, what is wanted, what is seen, and what is to be done at 100.0 s.
SITUATIONS: list[tuple[str, Desired, Sequence[Instance], list[Action]]] = [
    # Start order and restarts.
    ("those that wait for nobody start at once", here(ROLES), every("waiting", *ALL),
     [Launch("tokenizer", "tokenizer-1"), Launch("worker", "worker-1"), Launch("worker", "worker-2")]),
    ("the next waits until those before it are ready", here(ROLES),
     [one("tokenizer-1"), ready("worker-1"), ready("worker-2"), one("streamer-1", "waiting")], []),
    ("they are ready", here(ROLES),
     [ready("tokenizer-1"), one("worker-1"), one("worker-2"), one("streamer-1", "waiting")],
     [Launch("streamer", "streamer-1")]),
    ("one that isn't ready any more was it once", here(ROLES),
     [one("tokenizer-1", was_ready=True), *every("running", "worker-1", "worker-2"), one("streamer-1", "waiting")],
     [Launch("streamer", "streamer-1")]),
    ("a failed one holds nobody up", here(ROLES),
     [one("tokenizer-1", "failed"), *every("running", "worker-1", "worker-2"), one("streamer-1", "waiting")],
     [Launch("streamer", "streamer-1")]),
    ("a crashed one waits for its time", here(), [one("worker-1", "waiting", start_at=100.1), ready("worker-2")], []),
    ("a crashed one is started at its time, whatever the roles before it do", here(ROLES),
     [one("tokenizer-1"), ready("worker-1"), ready("worker-2"), one("streamer-1", "waiting", start_at=100.0)],
     [Launch("streamer", "streamer-1")]),
    ("a failed one is tried again", here(), [one("worker-1", "failed", start_at=99.0), ready("worker-2")],
     [Launch("worker", "worker-1")]),
    ("unless that is off", here(), [one("worker-1", "failed"), ready("worker-2")], []),
    # Stuck and fenced.
    ("a stuck one is killed", here(kill_stuck_after=30.0), [one("worker-1", was_ready=True, unready_since=70.0)],
     [KillNow("worker-1", "no progress for 30.0 s: killed, to be started again")]),
    ("not before its time", here(kill_stuck_after=30.0), [one("worker-1", was_ready=True, unready_since=70.1)], []),
    ("never where that is off", here(), [one("worker-1", was_ready=True, unready_since=0.0)], []),
    ("not one that was never ready", here(kill_stuck_after=30.0), [one("worker-1")], []),
    ("once", here(kill_stuck_after=30.0), [one("worker-1", unready_since=60.0, kill_at=100.5)], []),
    ("again, should it not have been heard", here(), [one("worker-1", unready_since=60.0, kill_at=100.0)],
     [KillNow("worker-1")]),
    ("a fenced one is killed", here(), [ready("worker-1", fenced=True)], [KillNow("worker-1", FENCED)]),
    ("once, too", here(), [ready("worker-1", fenced=True, kill_at=100.5)], []),
    ("one that drains is left to its deadline", here(), [one("worker-1", "draining", fenced=True, kill_at=130.0)], []),
    # Stopping.
    ("the highest stage drains first", here(ROLES, stopping=True), every("running", *ALL), [Drain("streamer-1")]),
    ("and the next waits for it", here(ROLES, stopping=True),
     [*every("running", "tokenizer-1", "worker-1", "worker-2"), one("streamer-1", "draining", kill_at=130.0)], []),
    ("it has ended", here(ROLES, stopping=True),
     [*every("running", "tokenizer-1", "worker-1", "worker-2"), one("streamer-1", "ended")],
     [Remove("streamer-1"), Drain("worker-1"), Drain("worker-2")]),
    ("what doesn't run needs no drain", here(ROLES, stopping=True),
     [one("tokenizer-1"), one("worker-1", "failed"), one("worker-2", "waiting", start_at=1.0)],
     [Remove("worker-1"), Remove("worker-2"), Drain("tokenizer-1")]),
    ("one that doesn't drain in time is killed", here(stopping=True), [one("worker-1", "draining", kill_at=99.0)],
     [KillNow("worker-1")]),
    ("at once: all are killed, of whatever stage", here(ROLES, stopping=True),
     [one("tokenizer-1", kill_at=100.0), one("streamer-1", "draining", kill_at=100.0)],
     [KillNow("tokenizer-1"), KillNow("streamer-1")]),
    ("a fenced one drains with its stage", here(stopping=True), [one("worker-1", fenced=True)], [Drain("worker-1")]),
    # Replacing in place.
    ("one is drained while all others are ready", here(old=("worker-1", "worker-2")),
     [ready("worker-1"), ready("worker-2")], [Drain("worker-1", REPLACES)]),
    ("the next waits until it has started again", here(old=("worker-2",)),
     [one("worker-1", "draining", kill_at=130.0), ready("worker-2")], []),
    ("and is ready", here(old=("worker-2",)), [one("worker-1"), ready("worker-2")], []),
    ("it is ready", here(old=("worker-2",)), [ready("worker-1"), ready("worker-2")], [Drain("worker-2", REPLACES)]),
    ("nobody is drained while another crashes", here(old=("worker-1",)),
     [ready("worker-1"), one("worker-2", "waiting", start_at=101.0)], []),
    ("one that doesn't leave is killed", here(old=("worker-2",)),
     [one("worker-1", "draining", kill_at=100.0), ready("worker-2")], [KillNow("worker-1")]),
    ("where one doesn't start again, the others stay", here(old=("worker-2",)),
     [one("worker-1", "failed", start_at=110.0), ready("worker-2")],
     [KeepOld("no other worker is replaced: one of them doesn't start again")]),
    ("the only one stays", here(ONE, old=("worker-1",)), [ready("worker-1")], [KeepOld(STAYS)]),
    ("a stop goes before replacing", here(old=("worker-2",), stopping=True),
     [one("worker-1", "draining", kill_at=130.0), ready("worker-2")], [Drain("worker-2")]),
    # On a cluster.
    ("what is missing is started under new names", cluster({"worker": Role(3)}, last=7),
     [one("worker-1"), one("worker-2", "dead"), one("worker-4", "draining")],
     [Remove("worker-2"), Launch("worker", "worker-8"), Launch("worker", "worker-9")]),
    ("as many as wanted, though one isn't placed", cluster(), [ready("worker-1"), one("worker-2", "placed")], []),
    ("what is too much: the useless and the idle first", cluster(last=5),
     [ready("worker-1", load=9), ready("worker-2", load=1), one("worker-3", "placed"), one("worker-4"),
      ready("worker-5", load=1)],
     [Drain("worker-3"), Drain("worker-4"), Drain("worker-5")]),
    ("one more is started before one is replaced", cluster(old=("worker-1", "worker-2")),
     [ready("worker-1"), ready("worker-2")], [Launch("worker", "worker-3")]),
    ("it isn't ready", cluster(last=3, old=("worker-1", "worker-2")),
     [ready("worker-1"), ready("worker-2"), one("worker-3")], []),
    ("it is: the idler of the old drains", cluster(last=3, old=("worker-1", "worker-2")),
     [ready("worker-1", load=3), ready("worker-2"), ready("worker-3")], [Drain("worker-2", REPLACES)]),
    ("it has no room: an old one makes some", cluster(last=3, old=("worker-1", "worker-2")),
     [ready("worker-1"), ready("worker-2"), one("worker-3", "placed", homeless=True)], [Drain("worker-1", REPLACES)]),
    ("the only one can't make room", cluster(ONE, old=("worker-1",)),
     [ready("worker-1"), one("worker-2", "placed", homeless=True)], [KeepOld(STAYS)]),
    ("a stop drains what waits for room, too", cluster(stopping=True), [one("worker-1", "placed")],
     [Drain("worker-1")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "seen", "todo"), [row[1:] for row in SITUATIONS], ids=[row[0] for row in SITUATIONS]
)
def test_what_is_to_be_done(wanted: Desired, seen: Sequence[Instance], todo: list[Action]) -> None:
    assert decide(wanted, seen, 100.0) == todo


WAKES: list[tuple[str, Desired, Sequence[Instance], float | None]] = [
    ("nothing changes by itself", here(), [ready("worker-1")], None),
    ("the first of the times", here(), [one("worker-1", "waiting", start_at=103.0), ready("worker-2", kill_at=102.0)],
     2.0),
    ("a time that is over", here(), [one("worker-1", "failed", start_at=10.0)], 0.0),
    ("one that may get stuck", here(kill_stuck_after=30.0), [one("worker-1", unready_since=90.0)], 20.0),
    ("a stop starts nothing", here(stopping=True), [one("worker-1", "waiting", start_at=103.0)], None),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "seen", "wake"), [row[1:] for row in WAKES], ids=[row[0] for row in WAKES])
def test_when_the_decision_changes_by_itself(wanted: Desired, seen: Sequence[Instance], wake: float | None) -> None:
    assert next_wake(wanted, seen, 100.0) == wake


def test_what_a_process_says_counts_while_it_runs() -> None:
    instance = one("worker-1", "waiting")
    instance.is_heard(True, 1.0)
    assert not instance.ready
    instance.starts()
    instance.is_heard(False, 2.0)
    assert instance.unready_since is None, "it has never been ready"
    instance.is_heard(True, 3.0)
    instance.is_heard(False, 4.0)
    instance.is_heard(False, 5.0)
    assert (instance.was_ready, instance.ready, instance.unready_since) == (True, False, 4.0)
    instance.is_heard(True, 6.0)
    assert instance.unready_since is None
    instance.drains(40.0)
    instance.is_heard(True, 7.0)
    assert not instance.ready and instance.kill_at == 40.0
    instance.ends("waiting", start_at=8.0)
    assert instance == one("worker-1", "waiting", start_at=8.0)


class Rounds:
    """Workers that get ready and end by chance: on one machine, or on a cluster with room for `room` of them."""

    def __init__(self, count: int, room: int | None, seed: int) -> None:
        self.count, self.room, self.chance = count, room, random.Random(seed)
        self.workers = [ready(f"worker-{number + 1}") for number in range(count)]
        self.old = {each.name for each in self.workers}
        self.last, self.started = count, 0
        self.fewest_ready = self.most = count
        self.kept = False

    def round(self) -> None:
        numbers = None if self.room is None else {"worker": self.last}
        for action in decide(Desired({"worker": Role(self.count)}, self.old, numbers=numbers), self.workers, 0.0):
            match action:
                case Launch(_, name):
                    self.started += 1
                    self._start(name)
                case Drain(name):
                    self._of(name).drains()
                case Remove(name):
                    self.workers.remove(self._of(name))
                    self.old.discard(name)
                case KeepOld():
                    self.kept = True
        self._go_on()
        self.fewest_ready = min(self.fewest_ready, sum(each.ready for each in self.workers))
        self.most = max(self.most, len(self.workers))

    def _start(self, name: str) -> None:
        if self.room is None:
            self._of(name).starts()
        else:
            self.last = number_of(name)
            self.workers.append(one(name, "placed", homeless=True))

    def _go_on(self) -> None:
        for each in self.workers:
            if each.state == "placed" and sum(other.state != "placed" for other in self.workers) < (self.room or 0):
                each.homeless = False
                each.starts()
            elif each.state == "running" and self.chance.random() < 0.3:
                each.is_heard(True, 0.0)
            elif each.state == "draining" and self.chance.random() < 0.3:
                each.ends("waiting" if self.room is None else "ended")
                if self.room is None:
                    self.old.discard(each.name)

    def _of(self, name: str) -> Instance:
        return next(each for each in self.workers if each.name == name)


# On a loaded machine the first draw takes seconds.
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(count=st.integers(1, 6), spare=st.sampled_from([None, 0, 1]), seed=st.integers(0, 2**32))
def test_all_are_replaced_and_at_most_one_is_missing(count: int, spare: int | None, seed: int) -> None:
    """`spare`: what the cluster has room for beyond as many as are wanted; None: one machine."""
    rounds = Rounds(count, None if spare is None else count + spare, seed)
    for _ in range(2000):
        rounds.round()
        if rounds.kept or (not rounds.old and all(each.ready for each in rounds.workers)):
            break
    assert rounds.kept == (count == 1 and not spare)
    if rounds.kept:
        assert sum(each.ready for each in rounds.workers) == 1
        return
    assert not rounds.old and rounds.started == count == sum(each.ready for each in rounds.workers)
    assert rounds.fewest_ready == (count if spare else count - 1)
    assert rounds.most <= count + (spare is not None)


STATES = st.sampled_from(["placed", "running", "draining", "ended", "dead"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states=st.lists(STATES, max_size=8), count=st.integers(0, 8))
def test_after_the_decision_is_carried_out_there_are_as_many_as_wanted(states: list[InstanceState], count: int) -> None:
    seen = [one(f"worker-{number}", state) for number, state in enumerate(states)]
    left = {each.name for each in seen if each.state != "draining"}
    for action in decide(cluster({"worker": Role(count)}, last=len(states)), seen, 0.0):
        match action:
            case Launch(_, name):
                assert name not in {each.name for each in seen}
                left.add(name)
            case Drain(name) | Remove(name):
                left.discard(name)
    assert len(left) == count
