"""The worker's engine without a thread: what it is asked for and what comes back."""

from __future__ import annotations

from services.api.messages import Sampling
from services.worker.in_process import InProcessEngine
from services.worker.running.mock import MockRunner, Profile


def test_the_same_numbers_may_be_asked_again_and_get_the_same_answers() -> None:
    engine = InProcessEngine(MockRunner(Profile()))
    prompts = {number: [100 + number, 101] for number in (0, 7)}
    answers = [{each.number: each.ids for each in engine.run(prompts, Sampling(max_tokens=20))} for _ in range(2)]
    assert answers[0] == answers[1]
    assert {number: len(ids) for number, ids in answers[0].items()} == {0: 20, 7: 20}
