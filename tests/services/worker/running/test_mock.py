"""The mock's text is a function of its seed, and its profile does what it says."""

from __future__ import annotations

from typing import Any

import pytest
from driving import repeat_what_followed, request, run_all
from msgspec.structs import replace

from services.api.pooling import POOLINGS
from services.worker.running.mock import CYCLE, EMBEDDING_SIZE, FIRST, MockFailure, MockRunner, Profile
from services.worker.running.work import Work
from services.worker.scheduling.sequence import Sequence


def text(count: int = 400, runner: MockRunner | None = None, **sampling: Any) -> list[int]:
    [outcome], _ = run_all(runner or MockRunner(Profile()), [request(max_tokens=count, **sampling)])
    return outcome.ids


def test_the_text_is_the_same_in_any_batch_and_with_any_drafts() -> None:
    runner = MockRunner(Profile(eos_every=150))
    wanted = [request([100 + i], name=str(i), max_tokens=300, temperature=float(i % 2), seed=i) for i in range(20)]
    alone = [run_all(runner, [each])[0][0].ids for each in wanted]
    assert [outcome.ids for outcome in run_all(runner, wanted)[0]] == alone
    drafted, scheduler = run_all(runner, wanted, repeat_what_followed)
    assert [outcome.ids for outcome in drafted] == alone
    assert any(tally.accepted for tally in scheduler.tallies.values())


def test_seeds_change_the_text_of_sampled_requests_alone() -> None:
    assert text(seed=1) == text(seed=2) == text()
    assert text(seed=1, temperature=1.0) != text(seed=2, temperature=1.0)
    assert text(runner=MockRunner(Profile(seed=3))) != text()


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1.0])
def test_acceptance_is_how_often_a_guess_on_the_cycle_is_right(acceptance: float) -> None:
    def on_the_cycle(sequence: Sequence, budget: int) -> list[int]:
        return [FIRST + (sequence.token_ids[-1] - FIRST + 1) % CYCLE]

    _, scheduler = run_all(
        MockRunner(Profile(acceptance=acceptance)), [request(max_tokens=3000)], on_the_cycle, max_context=4000
    )
    [tally] = scheduler.tallies.values()
    # Off the cycle a token may still be the next one of it, by chance.
    expected = acceptance + (1 - acceptance) / CYCLE
    assert tally.accepted / tally.drafted == pytest.approx(expected, abs=0.04)


def test_an_embedding_is_of_the_prompt_and_the_pooling() -> None:
    def embedding(prompt: list[int], pooling: str) -> bytes:
        wanted = replace(request(prompt, max_tokens=0), pooling=pooling)
        [outcome], _ = run_all(MockRunner(Profile()), [wanted], max_step_tokens=3)
        return outcome.finished.embedding

    prompts = [[100, 101, 102, 103, 104], [100, 101, 102, 103, 105]]
    made = [embedding(prompt, pooling) for prompt in prompts for pooling in POOLINGS]
    assert len(set(made)) == 4 and {len(each) for each in made} == {4 * EMBEDDING_SIZE}
    assert made[0] == embedding(prompts[0], POOLINGS[0])


def test_it_ends_texts_as_often_as_asked_but_not_before_min_tokens() -> None:
    runner = MockRunner(Profile(eos_every=20))
    wanted = [request([i + 100], name=str(i), max_tokens=1000) for i in range(200)]
    outcomes = run_all(runner, wanted, max_waiting=1000)[0]
    assert all(outcome.finished.stop_token == 2 for outcome in outcomes)
    assert 12 < sum(len(outcome.ids) for outcome in outcomes) / 200 < 30
    longer = run_all(runner, [request(max_tokens=1000, min_tokens=100)])[0][0]
    assert len(longer.ids) >= 100


class Clock:
    def __init__(self) -> None:
        self.now = 7.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(pytest.approx(seconds))
        self.now += seconds


def on(clock: Clock, **profile: float) -> MockRunner:
    return MockRunner(Profile(**profile), sleep=clock.sleep, now=lambda: clock.now)  # type: ignore[arg-type]


def test_steps_take_the_time_of_the_profile() -> None:
    clock = Clock()
    text(3, on(clock, step_ms=2.0, row_us=100.0))
    assert clock.slept == [0.0024, 0.0021, 0.0021]


def test_time_that_passed_since_the_launch_counts() -> None:
    clock = Clock()
    runner = on(clock, step_ms=2.0)
    for passed, seconds in ((0.0015, 0.002), (0.0025, 0.0025)):
        runner.launch(Work())
        clock.now += passed
        assert runner.finish().seconds == pytest.approx(seconds)
    assert clock.slept == [0.0005]


def test_a_step_that_is_launched_before_the_last_one_ends_begins_there() -> None:
    clock = Clock()
    runner = on(clock, step_ms=2.0)
    runner.launch(Work())
    clock.now += 0.0015
    for _ in range(3):
        runner.launch(Work(fed=[]))
        runner.finish()
    runner.finish()
    assert clock.slept == [0.0005, 0.002, 0.002, 0.002] and clock.now == pytest.approx(7.008)


def test_it_fails_whole_steps_and_single_sequences_as_asked() -> None:
    runner = MockRunner(Profile(crash_every=3, fail_every=2))
    with pytest.raises(MockFailure):
        run_all(runner, [request(max_tokens=5)] * 2)
    assert runner.steps == 3
    outcomes, _ = run_all(MockRunner(Profile(fail_every=2)), [request(max_tokens=5)] * 4)
    assert [len(outcome.ids) for outcome in outcomes] == [1, 5, 1, 5]
    assert [outcome.end.reason for outcome in outcomes] == ["engine", "length"] * 2


def test_logprobs_come_with_every_token() -> None:
    [outcome], _ = run_all(MockRunner(Profile()), [request(max_tokens=30, logprobs=3)], repeat_what_followed)
    assert len(outcome.logprobs) == 30


def test_logprobs_come_with_every_token_of_the_prompt_that_has_one_before_it() -> None:
    wanted = request(list(range(100, 130)), prompt_logprobs=2)
    [outcome], _ = run_all(MockRunner(Profile()), [wanted], max_step_tokens=7)
    assert [each.top[0].id for each in outcome.prompt] == list(range(101, 130))


@pytest.mark.parametrize(
    "given",
    [
        {"latency": 1},
        {"step_ms": -1},
        {"step_ms": "fast"},
        {"acceptance": 1.5},
        {"vocab_size": 5},
        {"step_ms": True},
        {"eos_token_id": 100},
    ],
)
def test_an_invalid_profile_is_refused_with_the_name_of_its_key(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="mock_profile"):
        Profile.parse(given)


def test_a_profile_is_read_from_the_setting() -> None:
    assert Profile.parse({"step_ms": 2, "vocab_size": 300.0}) == Profile(step_ms=2, vocab_size=300)
