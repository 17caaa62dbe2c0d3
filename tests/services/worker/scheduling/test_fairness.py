"""Order: priorities that age, huge prompts, and thousands of waiting requests."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any

import pytest
from driving import request, token_for_each
from msgspec.structs import replace
from paged_fake import EOS, VOCABULARY

from services.api.messages import MOST_PRIORITY
from services.worker.scheduling.events import Arrived, Cancelled, DeadlinePassed, Fail, Finish
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler


def make(**more: Any) -> Scheduler:
    fields: dict[str, Any] = {"page_tokens": 4, "pages": 4096, "max_context": 4096, **more}
    return Scheduler(Limits(vocab_size=VOCABULARY, eos_token_ids=(EOS,), **fields))


def arrive(
    scheduler: Scheduler,
    sequence_id: int,
    prompt: list[int],
    *,
    priority: int = 0,
    at: float = 0.0,
    tokens: int = 4,
    deadline: float | None = None,
) -> list[Any]:
    generate = replace(request(prompt, max_tokens=tokens, ignore_eos=True), priority=priority)
    return scheduler.handle(Arrived(generate, sequence_id, deadline, at))


def step(scheduler: Scheduler) -> tuple[dict[int, int], list[int]]:
    """Rows of each sequence in this step, and the sequences that ended with it."""
    work, sequence_ids, out = token_for_each(scheduler)
    rows = {sequence_id: len(item.tokens) for sequence_id, item in zip(sequence_ids, work.items, strict=True)}
    return rows, [end.sequence_id for end in out if isinstance(end, Finish)]


# Priorities -----------------------------------------------------------------------------------------------


def test_of_equal_priority_the_first_to_come_is_the_first_to_run() -> None:
    scheduler = make(max_sequences=1)
    for sequence_id in range(20):
        arrive(scheduler, sequence_id, [sequence_id + 1] * 5, at=sequence_id // 7)
    ended = []
    while scheduler.has_work:
        ended += step(scheduler)[1]
    assert ended == list(range(20))


def test_a_level_of_priority_is_some_seconds_of_waiting() -> None:
    scheduler = make(max_sequences=1, priority_seconds=5.0)
    arrive(scheduler, 1, [1], priority=2, at=0.0)
    arrive(scheduler, 2, [2], priority=0, at=9.0)
    arrive(scheduler, 3, [3], priority=0, at=11.0)
    arrive(scheduler, 4, [4], priority=-1, at=12.0)
    ended = []
    while scheduler.has_work:
        ended += step(scheduler)[1]
    assert ended == [4, 2, 1, 3]


@pytest.mark.parametrize("priority", [MOST_PRIORITY + 1, -MOST_PRIORITY - 1, 10**12])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    [fail] = arrive(make(), 1, [1], priority=priority)
    assert isinstance(fail, Fail) and fail.failed.reason == "invalid" and "priority" in fail.failed.message


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_with_a_higher_priority_a_request_with_the_lowest_ends_within_a_bound(seed: int) -> None:
    """Time passes with the steps. After `patience` no request passes it any more; before, no more than may wait."""
    chance = random.Random(seed)
    seconds, waiting, places, longest = chance.choice([0.1, 0.5]), 30, chance.choice([1, 3]), 6
    scheduler = make(
        max_sequences=places, max_waiting=waiting, priority_seconds=seconds, pages=chance.choice([10, 60]),
        max_context=32, prefix_cache=chance.random() < 0.5, max_step_tokens=chance.choice([16, 64]),
    )  # fmt: skip
    now = 0.0

    def rush() -> None:
        for _ in range(chance.randint(1, 4)):
            rush.sequence_id += 1  # type: ignore[attr-defined]
            prompt = [chance.randrange(1, 4) for _ in range(chance.randint(1, 24))]
            priority = chance.choice([-MOST_PRIORITY, 0, MOST_PRIORITY - 1])
            arrive(scheduler, rush.sequence_id, prompt, priority=priority, at=now, tokens=chance.randint(1, longest))  # type: ignore[attr-defined]

    rush.sequence_id = 0  # type: ignore[attr-defined]
    for _ in range(30):
        rush()
        step(scheduler)
        now += 1.0
    scheduler.handle(Cancelled(rush.sequence_id))  # type: ignore[attr-defined]
    while len(scheduler.waiting) >= waiting:
        scheduler.handle(Cancelled(next(iter(scheduler.waiting)).sequence_id))
    assert arrive(scheduler, 0, [7] * 20, priority=MOST_PRIORITY, at=now, tokens=longest) == []
    patience = 2 * MOST_PRIORITY * seconds
    # A step gives one token to each running sequence; a text takes its steps, and as many again for a prompt in chunks.
    bound = patience + (waiting + places + 1) * (longest + 24)
    steps = 0
    while True:
        if 0 in step(scheduler)[1]:
            break
        rush()
        now += 1.0
        steps += 1
        assert steps < bound, "starved"


def test_pages_go_to_high_priority_and_the_last_in_order_is_preempted() -> None:
    scheduler = make(pages=8, max_context=28, prefix_cache=False)
    arrive(scheduler, 1, [1] * 7, priority=3, tokens=20)
    arrive(scheduler, 2, [2] * 7, priority=0, tokens=20)
    arrive(scheduler, 3, [3] * 7, priority=1, tokens=20)
    while not scheduler.preemptions:
        step(scheduler)
    assert [sequence.sequence_id for sequence in scheduler.running] == [2, 3]
    ended = []
    while scheduler.has_work:
        ended += step(scheduler)[1]
    assert ended == [2, 3, 1]


# Huge prompts ---------------------------------------------------------------------------------------------


def test_a_huge_prompt_stalls_neither_decoding_nor_a_short_prompt_and_goes_on() -> None:
    scheduler = make(max_step_tokens=64, max_sequences=8)
    arrive(scheduler, 1, [1, 2, 3], tokens=500)
    step(scheduler)
    arrive(scheduler, 2, [5] * 3000)
    rows, _ = step(scheduler)
    assert rows == {1: 1, 2: 63}
    arrive(scheduler, 3, [6] * 30)
    arrive(scheduler, 4, [7] * 20)
    rows, _ = step(scheduler)
    # A quarter of the rows is for the short ones, the shortest first; the huge one has the rest.
    assert rows == {1: 1, 2: 46, 3: 1, 4: 16}
    for _ in range(3):
        rows, _ = step(scheduler)
        assert rows[1] == 1 and rows[2] >= 45
    assert all(sequence.generated for sequence in scheduler.running if sequence.sequence_id != 2)


def test_short_prompts_without_end_do_not_starve_a_huge_one() -> None:
    scheduler = make(max_step_tokens=32, max_sequences=8)
    arrive(scheduler, 0, [5] * 1000, tokens=1)
    steps, sequence_id = 0, 0
    while True:
        for _ in range(3):
            sequence_id += 1
            arrive(scheduler, sequence_id, [1 + sequence_id % 40] * 20, at=float(steps), tokens=1)
        rows, ended = step(scheduler)
        steps += 1
        if 0 in ended:
            break
        assert rows[0] >= 18
    assert steps <= 1000 / 18 + 1


def test_all_wanted_rows_are_given_as_far_as_there_are_any() -> None:
    chance = random.Random(5)
    for _ in range(200):
        scheduler = make(max_step_tokens=chance.choice([16, 40, 512]), max_sequences=8, prefix_cache=False)
        lengths = [chance.choice([1, 2, 7, 30, 200]) for _ in range(chance.randint(1, 8))]
        for sequence_id, length in enumerate(lengths):
            arrive(scheduler, sequence_id, [1 + sequence_id] * length)
        rows, _ = step(scheduler)
        assert sum(rows.values()) == min(scheduler.limits.max_step_tokens, sum(lengths))
        assert all(1 <= rows[sequence_id] <= length for sequence_id, length in enumerate(lengths))


# Thousands of waiting requests ---------------------------------------------------------------------------------------


def operations(work: Any) -> int:
    """Byte codes that a call executes: a count, where a clock would be noise."""
    count = 0

    def trace(frame: Any, what: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += what == "opcode"
        return trace

    before = sys.gettrace()
    # Callbacks of the collector would be counted, too.
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


class Compared(tuple[float, int]):
    """An order that counts how often it is looked at."""

    looks = 0

    def __lt__(self, other: Any) -> bool:
        Compared.looks += 1
        return super().__lt__(other)


def crowded(waiting: int, same: bool) -> Scheduler:
    scheduler = make(max_sequences=4, max_waiting=100_000)
    for number in range(waiting):
        prompt = [1] * 9 if same else [1 + number % 40, number // 40 % 40 + 1, number // 1600 + 1]
        arrive(scheduler, number, prompt, priority=number % 7, at=number, tokens=50, deadline=1e6 + number % 100)
    for _ in range(8):
        step(scheduler)
    assert len(scheduler.running) == 4
    for sequence in [*scheduler.running, *scheduler.waiting]:
        sequence.order = Compared(sequence.order)  # type: ignore[assignment]
    return scheduler


@pytest.mark.parametrize("same", [False, True])
def test_a_step_costs_the_same_with_50_or_5000_waiting(same: bool) -> None:
    few, many = crowded(50, same), crowded(5000, same)
    cost = {}
    for scheduler in (few, many):
        begin = Compared.looks
        counted = operations(lambda scheduler=scheduler: (step(scheduler), scheduler.next_deadline))  # type: ignore[misc]
        cost[scheduler] = (counted, Compared.looks - begin)
    assert cost[few] == cost[many]


def test_a_step_looks_at_few_of_the_requests_that_wait_for_one_text() -> None:
    costs = []
    for waiting in (200, 5000):
        scheduler = make(max_sequences=4, max_waiting=100_000, max_step_tokens=16)
        for sequence_id in range(waiting):
            arrive(scheduler, sequence_id, [1] * 200)
        costs.append(operations(lambda scheduler=scheduler: step(scheduler)))  # type: ignore[misc]
    assert costs[0] == costs[1]


def test_arrival_and_cancel_cost_about_the_same_with_50_or_5000_waiting() -> None:
    costs = []
    for waiting in (50, 5000):
        scheduler = crowded(waiting, same=False)
        scheduler.handle(DeadlinePassed(0.0))

        def work(scheduler: Scheduler = scheduler) -> None:
            arrive(scheduler, 99_999, [1, 2, 3], at=20.0, deadline=5.0)
            scheduler.handle(Cancelled(30))
            scheduler.handle(DeadlinePassed(6.0))

        costs.append(operations(work))
    assert costs[1] <= costs[0] * 1.2


def test_thousands_of_equal_prompts_are_admitted_as_others_end_and_all_end() -> None:
    scheduler = make(max_sequences=64, max_waiting=10_000, max_step_tokens=128)
    for sequence_id in range(3000):
        arrive(scheduler, sequence_id, [*range(1, 30)], tokens=2)
    steps, ended = 0, []
    while scheduler.has_work:
        ended += step(scheduler)[1]
        steps += 1
    assert sorted(ended) == list(range(3000))
    # One prompt was computed in full; the others took a row for it and one more.
    assert steps < 3000 * 2 / 64 + 20
    scheduler.check_idle()
