"""Equal shares of a worker for API keys."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from driving import done, one, request

from services.api.messages import Generate
from services.worker.scheduling.events import Arrived, Cancelled, Fail
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence
from services.worker.scheduling.shares import AHEAD, ANSWER, MOST_IDLE, Shares

LIMITS = Limits(
    vocab_size=1000, max_context=1024, eos_token_ids=(), page_tokens=4, pages=4000, max_sequences=8, max_waiting=10_000,
    prefix_cache=False,
)  # fmt: skip


def limits(**more: int) -> Limits:
    return replace(LIMITS, **more)


def of(caller: str, prompt: int = 4, answer: int = 4, priority: int = 0) -> Generate:
    made = request([*range(1, prompt + 1)], max_tokens=answer, ignore_eos=True)
    return msgspec.structs.replace(made, caller=caller, priority=priority, cache_salt=caller)


class Worker:
    """A scheduler with a clock of steps; every text gets one token a step."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.scheduler = Scheduler(limits)
        self.sent = 0
        self.at = 0.0
        # Tokens computed or generated, by key.
        self.used: dict[str, int] = {}
        self.admitted: list[Sequence] = []

    def send(self, generate: Generate) -> int:
        self.sent += 1
        self.at += 0.001
        out = self.scheduler.handle(Arrived(generate, self.sent, at=self.at))
        assert not any(isinstance(each, Fail) for each in out)
        return self.sent

    def step(self) -> None:
        before = set(self.scheduler.running)
        plan = self.scheduler.schedule()
        # Each once: one that was preempted isn't charged again.
        new = set(self.scheduler.running) - before - set(self.admitted)
        self.admitted += sorted(new, key=lambda each: each.sequence_id)
        for item in plan.items:
            caller = item.sequence.generate.caller
            self.used[caller] = self.used.get(caller, 0) + item.count
        self.scheduler.place({})
        done(self.scheduler, *(one(30) if item.verify else None for item in plan.items))

    def waits(self, caller: str) -> bool:
        return any(each.generate.caller == caller for each in self.scheduler.waiting)


def test_a_key_that_sends_one_request_does_not_wait_for_the_hundred_of_another() -> None:
    worker = Worker(LIMITS)
    for _ in range(100):
        worker.send(of("many"))
    late = worker.send(of("one"))
    worker.step()
    assert late in [each.sequence_id for each in worker.scheduler.running]


def test_requests_without_a_key_are_one_key_and_keep_their_order() -> None:
    worker = Worker()
    sequence_ids = [worker.send(of("", answer=3)) for _ in range(40)]
    while worker.scheduler.has_work:
        worker.step()
    assert [each.sequence_id for each in worker.admitted] == sequence_ids


def test_priority_orders_the_requests_of_a_key_and_takes_nothing_from_another() -> None:
    worker = Worker(limits(max_sequences=1))
    worker.send(of("a"))
    worker.step()
    for priority in (5, -5, 0):
        worker.send(of("a", priority=priority))
    for priority in (5, -5, 0):
        worker.send(of("b", priority=priority))
    while worker.scheduler.has_work:
        worker.step()
    callers = [each.generate.caller for each in worker.admitted]
    assert all(first != second for first, second in pairwise(callers))
    for caller in "ab":
        order = [each.generate.priority for each in worker.admitted[1:] if each.generate.caller == caller]
        assert order == [-5, 0, 5]


@pytest.mark.parametrize("seed", range(12))
def test_busy_keys_are_given_alike_within_the_dearest_request(seed: int) -> None:
    """Answers are as long as asked. One key sends short requests, one long ones, one many, and so on."""
    chance = random.Random(seed)
    kinds = {key: (chance.randint(1, 200), chance.randint(1, 100)) for key in "abcd"}
    dearest = max(prompt + answer for prompt, answer in kinds.values())
    worker = Worker(limits(max_sequences=chance.choice((1, 4, 16))))
    waiting = worker.scheduler.waiting
    for _ in range(250):
        for key, (prompt, answer) in kinds.items():
            while sum(each.generate.caller == key for each in waiting) < 20:
                worker.send(of(key, chance.randint(1, prompt), chance.randint(1, answer)))
        worker.step()
        given = dict.fromkeys(kinds, 0)
        for each in worker.admitted:
            given[each.generate.caller] += each.limit
        assert max(given.values()) - min(given.values()) <= dearest + AHEAD


@pytest.mark.parametrize("seed", range(6))
def test_what_busy_keys_really_get_differs_by_no_more_than_running_requests(seed: int) -> None:
    """Some ask for far more than they take, some take more than is charged at a time, and some leave."""
    chance = random.Random(100 + seed)
    kinds = {"short": (20, 5), "asks for all": (50, 900), "long": (50, 700), "hangs up": (300, 300)}
    slots = 8
    worker = Worker(limits(max_sequences=slots))
    ends = {}
    for _ in range(3000):
        for key, (prompt, answer) in kinds.items():
            while sum(each.generate.caller == key for each in worker.scheduler.waiting) < 10:
                sequence_id = worker.send(of(key, prompt, answer))
                ends[sequence_id] = chance.randint(1, answer) if key in ("asks for all", "hangs up") else answer
        worker.step()
        for each in list(worker.scheduler.running):
            if each.generated >= ends[each.sequence_id]:
                worker.scheduler.handle(Cancelled(each.sequence_id))
    most = max(prompt for prompt, _ in kinds.values()) + ANSWER
    assert worker.scheduler.preemptions > 0
    assert max(worker.used.values()) - min(worker.used.values()) <= most * (1 + slots)


def test_a_key_that_was_idle_has_saved_nothing_and_one_that_was_alone_owes_nothing() -> None:
    worker = Worker(limits(max_sequences=2))
    for _ in range(200):
        worker.send(of("alone"))
    for _ in range(300):
        worker.step()
    for _ in range(50):
        worker.send(of("new"))
    before = dict(worker.used)
    for _ in range(100):
        worker.step()
    gained = [worker.used.get(key, 0) - before.get(key, 0) for key in ("alone", "new")]
    assert max(gained) - min(gained) <= 2 * (8 + 8)


def test_what_a_request_did_not_use_of_its_charge_is_given_back_at_its_end() -> None:
    worker = Worker(limits(max_sequences=1))
    cancelled = worker.send(of("a", answer=200))
    for caller in "aabb":
        worker.send(of(caller))
    worker.step()
    worker.scheduler.handle(Cancelled(cancelled))
    while worker.scheduler.has_work:
        worker.step()
    assert [each.generate.caller for each in worker.admitted] == ["a", "b", "a", "b", "a"]


def with_a_long_prompt_cached(max_sequences: int) -> Worker:
    """Four requests with it wait, and four short ones of another key."""
    worker = Worker(limits(max_sequences=max_sequences, prefix_cache=True))
    worker.send(of("long", prompt=401, answer=8))
    while worker.scheduler.has_work:
        worker.step()
    worker.admitted.clear()
    for _ in range(4):
        worker.send(of("long", prompt=401, answer=8))
        worker.send(of("short", prompt=1, answer=8))
    return worker


def test_a_key_is_not_charged_for_what_the_cache_has_of_its_prompts() -> None:
    worker = with_a_long_prompt_cached(max_sequences=4)
    worker.step()
    assert sorted(each.generate.caller for each in worker.admitted) == ["long", "long", "short", "short"]


def test_at_its_end_neither_is_a_key_charged_for_what_the_cache_had() -> None:
    worker = with_a_long_prompt_cached(max_sequences=1)
    while worker.scheduler.has_work:
        worker.step()
    callers = [each.generate.caller for each in worker.admitted]
    assert all(first != second for first, second in pairwise(callers))


def test_one_that_was_preempted_comes_back_before_later_ones_of_its_key() -> None:
    worker = Worker(limits(pages=12, max_sequences=4))
    sequence_ids = [worker.send(of("a", prompt=8, answer=30)) for _ in range(6)]
    while worker.scheduler.has_work:
        worker.step()
    assert worker.scheduler.preemptions > 0
    first = list(dict.fromkeys(each.sequence_id for each in worker.admitted))
    assert first == sequence_ids
    worker.scheduler.check_idle()


@pytest.mark.parametrize("count", [8, 20])
def test_a_key_with_all_places_gives_way_at_once_and_its_texts_end_all_the_same(count: int) -> None:
    """To half of an equal share."""
    worker = Worker()
    many = [worker.send(of("many", answer=300)) for _ in range(count)]
    worker.step()
    assert [each.sequence_id for each in worker.scheduler.running] == many[:8]
    late = [worker.send(of("one", answer=2)) for _ in range(6)]
    worker.step()
    assert [each.sequence_id for each in worker.scheduler.running] == [*many[:6], *late[:2]]
    assert worker.scheduler.preemptions == 2
    while worker.scheduler.has_work:
        worker.step()
    assert sorted({each.sequence_id for each in worker.admitted}) == [*many, *late]
    worker.scheduler.check_idle()


def test_short_requests_one_after_another_needn_t_wait_for_long_ones_of_another_key() -> None:
    worker = Worker()
    for _ in range(20):
        worker.send(of("many", answer=900))
    worker.step()
    for _ in range(30):
        late = worker.send(of("one", answer=2))
        worker.step()
        assert late in [each.sequence_id for each in worker.scheduler.running]
        worker.step()
        worker.step()


def test_keys_that_all_have_running_requests_take_no_place_from_each_other() -> None:
    worker = Worker(limits(max_sequences=4))
    for caller in "ab":
        for _ in range(10):
            worker.send(of(caller, answer=50))
    for _ in range(40):
        worker.step()
    assert worker.scheduler.preemptions == 0


def test_nobody_gives_way_where_there_are_no_pages_for_who_comes() -> None:
    worker = Worker(limits(pages=60, max_sequences=4))
    for _ in range(4):
        worker.send(of("many", prompt=40, answer=16))
    worker.step()
    worker.send(of("one", prompt=200, answer=2))
    for _ in range(10):
        worker.step()
    assert worker.scheduler.preemptions == 0
    while worker.scheduler.has_work:
        worker.step()
    worker.scheduler.check_idle()


def test_a_long_answer_is_charged_further_as_soon_as_it_has_used_up_what_was_charged() -> None:
    worker = Worker(limits(page_tokens=512, pages=2))
    worker.send(of("a", prompt=4, answer=3 * ANSWER))
    worker.step()
    [sequence] = worker.scheduler.running
    while sequence.generated < ANSWER - 1:
        worker.step()
    assert sequence.charged == 4 + ANSWER
    worker.step()
    assert sequence.charged == 4 + 2 * ANSWER


def test_keys_that_come_and_go_leave_no_memory_behind() -> None:
    shares: Shares[int] = Shares()
    for number in range(5 * MOST_IDLE):
        shares.put(str(number), 0, number)
        shares.remove(number)
        shares.admit(str(number), 1000)
        shares.charge(str(number), -10)
    assert len(shares._used) <= MOST_IDLE + 2 and not shares._waiting and not len(shares)
