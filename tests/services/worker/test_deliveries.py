"""What waits for the next step, and what doesn't."""

from __future__ import annotations

from services.api.messages import Failed, Run, Tokens
from services.worker.deliveries import TOGETHER, Deliveries
from services.worker.outlet import push_all
from services.worker.scheduling.events import Answer, Emit, Fail


class Clock:
    def __init__(self) -> None:
        self.now = 10.0
        self.delivered: list[list[Answer]] = []
        self.deliveries = Deliveries(self.delivered.append, lambda: self.now, TOGETHER)

    def step(self, *answers: Answer, after: float, more_soon: bool = True) -> int:
        """How many answers were delivered behind it."""
        self.now += after
        before = len(self.delivered)
        for each in answers:
            self.deliveries.add(each)
        self.deliveries.send(more_soon)
        for _ in self.delivered[before:]:
            self.deliveries.taken()
        return sum(map(len, self.delivered[before:]))


def emit(sequence: int, seq: int, *ids: int) -> Emit:
    run = Run(length=len(ids), drafted=0, accepted=0)
    return Emit(sequence, Tokens(request_id=str(sequence), attempt=1, seq=seq, ids=list(ids), runs=[run]))


def fail(sequence: int) -> Fail:
    return Fail(sequence, Failed(request_id=str(sequence), attempt=1, reason="engine", message="x"))


def test_tokens_of_steps_within_milliseconds_go_together() -> None:
    clock = Clock()
    assert clock.step(emit(1, 1, 7), after=1.0) == 1
    assert clock.step(emit(1, 2, 8), after=TOGETHER / 3) == 0
    assert clock.step(emit(1, 3, 9), after=TOGETHER / 3) == 0
    assert clock.step(emit(1, 4, 5), after=TOGETHER / 2) == 3


def test_where_nothing_waits_each_step_is_delivered() -> None:
    clock = Clock()
    clock.deliveries = Deliveries(clock.delivered.append, lambda: clock.now)
    assert [clock.step(emit(1, seq, 7), after=0.0) for seq in range(1, 4)] == [1, 1, 1]


def test_steps_that_take_longer_are_delivered_one_by_one() -> None:
    clock = Clock()
    assert [clock.step(emit(1, seq, 7), after=2 * TOGETHER) for seq in range(1, 5)] == [1, 1, 1, 1]


def test_first_tokens_ends_and_what_no_short_step_follows_dont_wait() -> None:
    clock = Clock()
    clock.step(emit(1, 1, 7), after=1.0)
    assert clock.step(emit(1, 2, 7), after=0.0) == 0
    assert clock.step(emit(1, 3, 7), emit(2, 0, 7), after=0.0) == 3
    assert clock.step(emit(1, 4, 7), fail(2), after=0.0) == 2
    assert clock.step(emit(1, 5, 7), after=0.0) == 0
    assert clock.step(emit(1, 6, 7), after=0.0, more_soon=False) == 2


def test_each_request_gets_the_tokens_of_several_steps_as_one_message_before_its_end() -> None:
    class Outlet:
        def __init__(self) -> None:
            self.got: list[object] = []

        def push(self, answer: object) -> None:
            self.got.append(answer)

    outlets = {1: Outlet(), 2: Outlet()}
    end = fail(1)
    push_all(outlets, [emit(1, 1, 7), emit(2, 5, 4), emit(3, 0, 1), emit(1, 2, 8, 9), end, emit(2, 6, 3)])
    [both, last] = outlets[1].got
    assert isinstance(both, Tokens) and (both.seq, both.ids, len(both.runs)) == (1, [7, 8, 9], 2)
    assert last is end.failed
    [both] = outlets[2].got
    assert isinstance(both, Tokens) and both.ids == [4, 3]
