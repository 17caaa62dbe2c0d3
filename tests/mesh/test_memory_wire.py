"""A blocking link over a wire in memory: what happens to frames, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from mesh_doubles.clock import SteppedClock
from mesh_doubles.memory_wire import Air, FarEnd, MemoryWire

from mesh.blocking import BlockingLink
from mesh.codec import Codec
from mesh.errors import DeadlineExceeded, MeshError, PeerLost, Refuse


class Question(msgspec.Struct):
    number: int


class Reply(msgspec.Struct):
    number: int


CODEC = Codec({"question": Question, "reply": Reply})
THINK = 0.25


class World:
    def __init__(self, seed: int = 1, answering: Callable[[Any], Any] | None = None, **faults: float) -> None:
        self.clock = SteppedClock(0.0)
        self.asked: list[int] = []
        self.air = Air(self.clock, seed, **faults)
        self.far = FarEnd(self.air, CODEC, answering or self.answer)
        wire = MemoryWire(self.air, self.far)
        self.link = BlockingLink("ipc://far", "actor", CODEC, "near", 7, wire=wire)

    def answer(self, question: Question) -> tuple[Reply, float]:
        self.asked.append(question.number)
        return Reply(-question.number), THINK

    def ask(self, number: int, timeout: float = 1.0) -> int:
        found: Reply = self.link.ask(Question(number), timeout)
        return found.number


def test_an_ask_is_answered_when_its_time_has_passed() -> None:
    world = World(delay=0.1)
    assert world.ask(5) == -5
    assert world.clock.now == pytest.approx(0.1 + THINK + 0.1)


def test_what_is_sent_is_answered_while_the_thread_does_something_else() -> None:
    world = World(delay=0.1)
    ticket = world.link.send(Question(1), timeout=1.0)
    world.clock.sleep(3.0)
    assert world.link.receive(ticket, 0.0) == Reply(-1)
    assert world.clock.now == 3.0


def test_who_isnt_answered_has_waited_for_as_long_as_he_said() -> None:
    world = World(drop=1.0)
    with pytest.raises(DeadlineExceeded):
        world.ask(1, timeout=2.0)
    assert world.clock.now == pytest.approx(2.0)
    assert world.air.dropped >= 1 and not world.asked


def test_what_comes_twice_is_asked_once() -> None:
    world = World(duplicate=1.0)
    assert [world.ask(number) for number in range(5)] == [0, -1, -2, -3, -4]
    assert world.asked == [0, 1, 2, 3, 4]


def test_answers_find_their_questions_in_any_order() -> None:
    world = World(reorder=1.0, jitter=0.9)
    tickets = [world.link.send(Question(number)) for number in range(20)]
    assert [world.link.receive(ticket, 5.0).number for ticket in tickets] == [-number for number in range(20)]
    assert world.asked != sorted(world.asked)


def test_damaged_bytes_are_never_more_than_an_error() -> None:
    world = World(damage=0.7)
    answered = 0
    for number in range(300):
        with suppress(MeshError):
            answered += world.ask(number) == -number
    assert 10 < answered < 290
    assert world.far.malformed > 10


def test_a_refusal_reaches_who_asked() -> None:
    def refuse(question: Question) -> None:
        raise Refuse("stale", "no")

    with pytest.raises(MeshError, match="no"):
        World(answering=refuse).ask(1)


def test_one_that_starts_anew_is_noticed_by_who_waits() -> None:
    world = World(answering=lambda question: None)
    ticket = world.link.send(Question(1))
    with pytest.raises(DeadlineExceeded):
        world.ask(2, timeout=0.1)
    world.far.restart(world.answer)
    # The first word of the new one is a Welcome: whatever is open then was asked of another, as far as can be known.
    with pytest.raises(PeerLost):
        world.ask(3)
    with pytest.raises(PeerLost):
        world.link.receive(ticket, 1.0)
    assert world.ask(4) == -4


def test_where_nobody_is_nothing_is_sent() -> None:
    world = World()
    world.air.cut = True
    with pytest.raises(PeerLost):
        world.ask(1, timeout=0.5)
    assert world.clock.now == pytest.approx(0.5)
    world.air.cut = False
    assert world.ask(2) == -2


def test_after_the_link_is_closed_nothing_comes() -> None:
    world = World()
    world.link.send(Question(1))
    world.link.close()
    world.link.close()
    world.clock.sleep(9.0)
    world.air.settle()
    assert world.asked == [1]


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_determines_the_simulation(seed: int) -> None:
    def run() -> tuple[list[int], float]:
        world = World(seed, drop=0.2, duplicate=0.2, reorder=0.5, damage=0.2)
        for number in range(50):
            with suppress(MeshError):
                world.ask(number)
        return world.asked, world.clock.now

    assert run() == run()
