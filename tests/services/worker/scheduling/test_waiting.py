"""Who waits, and for what."""

from __future__ import annotations

from driving import request

from services.worker.scheduling.arrival import make_sequence
from services.worker.scheduling.events import Arrived
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.sequence import Sequence
from services.worker.scheduling.waiting import Waiting

LIMITS = Limits(vocab_size=1000, max_context=64, eos_token_ids=(), page_tokens=4, pages=64)


def sequence(id: int, at: float = 0.0) -> Sequence:
    return make_sequence(Arrived(request([1, 2, 3]), id, None, at), LIMITS, {})


def test_a_sequence_behind_another_is_not_first_until_the_text_is_there() -> None:
    waiting = Waiting()
    leader, a, b, c = (sequence(id) for id in range(1, 5))
    for each in (a, b, c):
        waiting.put(each)
    waiting.step_behind(a, leader, 8)
    waiting.step_behind(b, leader, 16)
    assert waiting.first() is c and len(waiting) == 3 and list(waiting) == [a, b, c]
    waiting.leader_is_at(leader, 7)
    assert waiting.first() is c
    waiting.leader_is_at(leader, 9)
    assert waiting.first() is a
    waiting.leader_left(leader)
    for each in (a, b, c):
        assert waiting.first() is each
        waiting.remove(each)
    waiting.check_empty()


def test_a_sequence_behind_another_may_leave() -> None:
    waiting = Waiting()
    leader, a, b = (sequence(id) for id in range(1, 4))
    for each in (a, b):
        waiting.put(each)
        waiting.step_behind(each, leader, 8)
    waiting.remove(a)
    assert len(waiting) == 1
    waiting.leader_is_at(leader, 8)
    waiting.remove(b)
    waiting.leader_left(leader)
    waiting.check_empty()


def test_one_that_has_run_comes_before_later_ones_and_behind_earlier_ones() -> None:
    waiting = Waiting()
    urgent, preempted, late = sequence(1, at=1.0), sequence(2, at=2.0), sequence(3, at=3.0)
    waiting.put(preempted)
    waiting.admit(preempted, 0)
    waiting.put(preempted)
    waiting.put(late)
    assert waiting.first() is preempted
    waiting.put(urgent)
    assert waiting.first() is urgent
