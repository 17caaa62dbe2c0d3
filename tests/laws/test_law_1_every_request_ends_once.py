"""Law 1: tokens, then Finished, or Failed(reason): each request ends, once, whatever happens around it.

The wire's half is tests/flow/test_deaths.py (real processes killed) and tests/mesh/test_stream.py.
"""

from __future__ import annotations

import random

import pytest
from engine_room import EngineRoom, some_prompt

from services.api.messages import Failed, Finished
from services.worker.running.mock import MockRunner, Profile


@pytest.mark.parametrize("seed", range(6))
def test_under_cancels_deadlines_and_scarce_pages_each_sequence_ends_exactly_once(seed: int) -> None:
    chance = random.Random(seed)
    runner = MockRunner(Profile(acceptance=0.7, row_us=1.0), pages=40)
    with EngineRoom(runner, max_sequences=8, max_step_tokens=64, max_waiting=4000) as room:
        sequence_ids, cancelled = [], set()
        for _ in range(300):
            deadline = chance.choice([None, None, 0.0, 0.05])
            sequence_ids.append(room.send(some_prompt(chance), deadline, max_tokens=chance.randint(0, 80)))
            if chance.random() < 0.3:
                victim = chance.choice(sequence_ids)
                room.cancel(victim)
                cancelled.add(victim)
        room.run([s for s in sequence_ids if s not in cancelled])
        room.settle()
        assert all(len(room.ends[s]) == 1 for s in sequence_ids if s not in cancelled)
        assert all(len(room.ends[s]) <= 1 for s in cancelled)
        reasons = {type(e).__name__ + ":" + e.reason for ends in room.ends.values() for e in ends}
        assert {"Finished:length", "Failed:deadline"} <= reasons


def test_what_cannot_be_served_is_told_so_at_once() -> None:
    with EngineRoom(MockRunner(Profile(max_context=128), pages=64), max_waiting=4000) as room:
        too_long = room.send([100] * 500)
        outside = room.send([10**9])
        unknown = room.send([100], method="clairvoyance")
        room.run([too_long, outside, unknown])
        ends = [room.ends[s][0] for s in (too_long, outside, unknown)]
        assert [e.reason for e in ends] == ["too_long", "invalid", "invalid"]
        assert all(isinstance(e, Failed) and not e.retryable for e in ends)


def test_when_the_engine_fails_every_request_fails_and_may_be_retried() -> None:
    runner = MockRunner(Profile(crash_every=20), pages=256)
    with EngineRoom(runner) as room:
        sequence_ids = [room.send([100, 101, 102], max_tokens=500) for _ in range(12)]
        room.run(sequence_ids)
        assert all(len(room.ends[s]) == 1 and room.ends[s][0].retryable for s in sequence_ids)  # type: ignore[union-attr]
        late = room.send([100])
        room.run([late])
        # The engine says so behind the ends of its requests, and before it hears of others.
        assert room.failures
        assert isinstance(room.ends[late][0], Failed)


def test_one_request_the_engine_cannot_go_on_with_does_not_take_others_along() -> None:
    with EngineRoom(MockRunner(Profile(fail_every=5), pages=256)) as room:
        sequence_ids = [room.send([100, 101, 102]) for _ in range(20)]
        room.run(sequence_ids)
        ends = [room.ends[s][0] for s in sequence_ids]
        assert sum(isinstance(e, Failed) for e in ends) == 4
        assert sum(isinstance(e, Finished) for e in ends) == 16
        room.settle()
