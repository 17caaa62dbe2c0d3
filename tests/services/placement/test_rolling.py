"""Replacing workers one by one, in simulated rounds."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.placement.plan import Create, Drain, Remove, Watcher, decide, number_of
from services.placement.rolling import is_stuck
from services.runtime.roles import STAGE

ROUNDS = 2000


class Mesh:
    """Workers that get ready and end by chance, on machines with `room` of them."""

    def __init__(self, count: int, room: int, seed: int) -> None:
        self.count, self.room, self.chance = count, room, random.Random(seed)
        self.watchers = [Watcher("worker", f"worker-{n + 1}", "there", "m", ready=True) for n in range(count)]
        self.old = {each.instance for each in self.watchers}
        self.numbers = {"worker": count}
        self.fewest_ready = self.most = count

    def round(self) -> None:
        for instruction in decide({"worker": self.count}, self.watchers, self.numbers, STAGE, False, self.old):
            match instruction:
                case Create(role, instance):
                    self.numbers[role] = number_of(instance)
                    self.watchers.append(Watcher(role, instance, "placed", homeless=True))
                case Drain(instance):
                    self._change(instance, state="draining", ready=False)
                case Remove(instance):
                    self.watchers = [each for each in self.watchers if each.instance != instance]
                    self.old.discard(instance)
        self._go_on()
        self.fewest_ready = min(self.fewest_ready, sum(each.ready for each in self.watchers))
        self.most = max(self.most, len(self.watchers))

    def _go_on(self) -> None:
        for each in self.watchers:
            placed = sum(other.state != "placed" for other in self.watchers)
            if each.state == "placed" and placed < self.room:
                self._change(each.instance, state="there", homeless=False)
            elif each.state == "there" and self.chance.random() < 0.3:
                self._change(each.instance, ready=True)
            elif each.state == "draining" and self.chance.random() < 0.3:
                self._change(each.instance, state="ended")

    def _change(self, instance: str, **to: object) -> None:
        self.watchers = [replace(each, **to) if each.instance == instance else each for each in self.watchers]  # type: ignore[arg-type]


# On a loaded machine the first draw takes seconds.
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(count=st.integers(1, 6), spare=st.booleans(), seed=st.integers(0, 2**32))
def test_all_are_replaced_and_at_most_one_is_missing(count: int, spare: bool, seed: int) -> None:
    mesh = Mesh(count, count + spare, seed)
    if count == 1 and not spare:
        mesh.round()
        assert is_stuck(mesh.watchers, 1, mesh.old)
        return
    for _ in range(ROUNDS):
        mesh.round()
        if not mesh.old and all(each.ready for each in mesh.watchers):
            break
    ready = [each.instance for each in mesh.watchers if each.ready]
    assert not mesh.old and sorted(ready, key=number_of) == [f"worker-{count + n + 1}" for n in range(count)]
    assert mesh.fewest_ready == (count if spare else count - 1)
    assert mesh.most <= count + 1


def test_without_old_ones_nothing_is_replaced() -> None:
    workers = [Watcher("worker", f"worker-{n}", "there", "m", ready=True) for n in (1, 2)]
    assert decide({"worker": 2}, workers, {"worker": 2}, STAGE) == []
