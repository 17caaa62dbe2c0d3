"""What a sequence need not compute, with the prefix cache on. Pages have 4 tokens."""

from __future__ import annotations

from typing import Any

import pytest
from driving import Guess, done, one, placed, repeat_what_followed, request, run_all, token_for_each
from msgspec.structs import replace
from paged_fake import EOS, VOCABULARY, PagedFake, alone

from services.api.drafter import Draft
from services.worker.running.work import Verdict
from services.worker.scheduling.events import Arrived, Cancelled, EngineFailed, Finish
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler

TEXT = list(range(1, 21))


def make(**more: Any) -> Scheduler:
    fields: dict[str, Any] = {"page_tokens": 4, "pages": 64, "max_step_tokens": 64, "max_sequences": 8, **more}
    return Scheduler(Limits(VOCABULARY, 64, (EOS,), **fields))


def arrive(
    scheduler: Scheduler, sequence_id: int, prompt: list[int], salt: str = "", priority: int = 0, tokens: int = 9
) -> None:
    generate = replace(request(prompt, max_tokens=tokens, ignore_eos=True), cache_salt=salt, priority=priority)
    assert scheduler.handle(Arrived(generate, sequence_id)) == []


def step(scheduler: Scheduler, token: int = 30) -> list[tuple[int, list[int], int]]:
    """One step in which every text gets `token`: (sequence_id, tokens, start) of each."""
    work, sequence_ids, _ = token_for_each(scheduler, token)
    return [(sequence_id, item.tokens, item.start) for sequence_id, item in zip(sequence_ids, work.items, strict=True)]


def run_out(scheduler: Scheduler, token: int = 30) -> list[Any]:
    """Until nothing is left: what was said at the ends, in order."""
    ends = []
    while scheduler.has_work:
        ends += [item.finished for item in token_for_each(scheduler, token)[2] if isinstance(item, Finish)]
    scheduler.check_idle()
    return ends


def served(scheduler: Scheduler, prompt: list[int], sequence_id: int = 99, **more: Any) -> None:
    """A request that ran to its end."""
    arrive(scheduler, sequence_id, prompt, **more)
    run_out(scheduler)


# Pages of earlier requests ---------------------------------------------------------------------


def test_a_prompt_that_was_computed_before_is_computed_from_its_last_whole_page_on() -> None:
    scheduler = make()
    served(scheduler, TEXT[:11], tokens=1)
    arrive(scheduler, 1, TEXT)
    assert step(scheduler) == [(1, TEXT[8:], 8)]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    scheduler = make()
    served(scheduler, TEXT[:8], tokens=1)
    arrive(scheduler, 1, TEXT[:8])
    # The second page is there as a whole, but its last token's logits are wanted.
    assert step(scheduler) == [(1, TEXT[4:8], 4)]
    served(scheduler, TEXT[:9], tokens=1)
    arrive(scheduler, 2, TEXT[:9])
    assert (2, TEXT[8:9], 8) in step(scheduler)


def test_answers_are_found_as_well_as_prompts() -> None:
    scheduler = make()
    served(scheduler, TEXT[:6], tokens=7)
    arrive(scheduler, 1, [*TEXT[:6], *[30] * 7, 5])
    # 12 of the 13 tokens were computed: the last of an answer never is.
    assert step(scheduler) == [(1, [30, 5], 12)]


def test_a_page_that_is_full_can_be_found_at_once() -> None:
    scheduler = make()
    arrive(scheduler, 1, TEXT[:6])
    for _ in range(3):
        step(scheduler)
    [sequence] = scheduler.running
    assert (sequence.computed, sequence.entered) == (8, 2)
    arrive(scheduler, 2, [*TEXT[:6], 30, 30, 5])
    assert (2, [5], 8) in step(scheduler)
    run_out(scheduler)


def test_a_page_whose_last_token_was_never_computed_is_not_found() -> None:
    scheduler = make()
    # 12 tokens in all: three pages are full of text, but of the twelfth token only the id is known.
    served(scheduler, TEXT[:6], tokens=6)
    arrive(scheduler, 1, [*TEXT[:6], *[30] * 6, 5])
    assert step(scheduler) == [(1, [30, 30, 30, 30, 5], 8)]


def test_finished_says_how_much_of_the_prompt_was_there() -> None:
    scheduler = make()
    arrive(scheduler, 1, TEXT)
    [first] = run_out(scheduler)
    arrive(scheduler, 2, TEXT)
    [second] = run_out(scheduler)
    assert (first.cached_tokens, second.cached_tokens) == (0, 16)
    sharing = scheduler.planner.sharing
    assert (sharing.asked_tokens, sharing.found_tokens) == (40, 16)


def test_a_later_attempt_counts_its_prompt_alone() -> None:
    scheduler = make()
    served(scheduler, TEXT[:6], tokens=9)
    generate = request(TEXT[:6], so_far=[30] * 8, attempt=2, max_tokens=9, ignore_eos=True)
    scheduler.handle(Arrived(generate, 1))
    [finished] = run_out(scheduler)
    assert finished.cached_tokens == 6


def test_rejected_drafts_are_never_found() -> None:
    scheduler = make(method="ngram")
    arrive(scheduler, 1, TEXT[:6], tokens=20)
    step(scheduler, token=7)
    [sequence] = scheduler.running
    work, _ = placed(scheduler, {sequence.sequence_id: Draft([8, 9, 10, 11])})
    assert work.items[0].draft.tokens == [8, 9, 10, 11]
    done(scheduler, Verdict([8, 40], 1))
    scheduler.handle(Cancelled(1))
    # [1 2 3 4 5 6 7 8] is committed and computed; 9 lay behind it for a while.
    arrive(scheduler, 2, [*TEXT[:8], 9, 10, 11, 12, 13])
    assert step(scheduler) == [(2, [9, 10, 11, 12, 13], 8)]


def test_different_salts_share_nothing_and_equal_ones_do() -> None:
    scheduler = make()
    served(scheduler, TEXT, salt="a")
    for sequence_id, salt in ((1, "b"), (2, ""), (3, "a")):
        arrive(scheduler, sequence_id, TEXT, salt=salt)
    assert step(scheduler) == [(1, TEXT, 0), (2, TEXT, 0), (3, TEXT[16:], 16)]
    pages = [page for sequence in scheduler.running for page in sequence.pages]
    assert len(pages) == len(set(pages))


def with_one_preempted(pages: int) -> Scheduler:
    """Two began; there are so few pages that the second has lost its own."""
    scheduler = make(pages=pages, page_tokens=4)
    arrive(scheduler, 1, TEXT[:7], tokens=20)
    arrive(scheduler, 2, TEXT[10:17], tokens=20)
    while not scheduler.preemptions:
        step(scheduler)
    return scheduler


def test_what_was_computed_without_a_drafter_is_not_found_by_a_text_that_has_one() -> None:
    """Its layers have keys and values in the same pages."""
    scheduler = make()
    found = []
    for sequence_id, method in enumerate(("naive", "eagle3", "eagle3", "naive")):
        scheduler.handle(Arrived(request(TEXT, max_tokens=1, method=method), sequence_id))
        found += [end.cached_tokens for end in run_out(scheduler)]
    assert found == [0, 0, 16, 16]


def test_a_preempted_sequence_finds_its_computed_pages() -> None:
    scheduler = with_one_preempted(pages=6)
    assert [sequence.sequence_id for sequence in scheduler.waiting] == [2]
    computed = scheduler.waiting.first().length - 1  # type: ignore[union-attr]
    scheduler.handle(Cancelled(1))
    [(_, tokens, start)] = step(scheduler)
    assert 0 < start <= computed and start + len(tokens) == computed + 1
    assert [end.cached_tokens for end in run_out(scheduler)] == [0]


def test_the_page_that_was_filled_in_the_step_before_a_preemption_is_found_too() -> None:
    scheduler = with_one_preempted(pages=5)
    waiting = scheduler.waiting.first()
    assert waiting is not None and (waiting.sequence_id, waiting.length) == (2, 9)
    scheduler.handle(Cancelled(1))
    assert step(scheduler) == [(2, [30], 8)]
    run_out(scheduler)


def test_pages_of_a_failed_engine_are_not_found() -> None:
    scheduler = make()
    served(scheduler, TEXT)
    arrive(scheduler, 1, TEXT)
    scheduler.handle(EngineFailed("gone"))
    arrive(scheduler, 2, TEXT)
    assert step(scheduler) == [(2, TEXT, 0)]


def test_what_was_computed_for_a_sequence_the_engine_failed_is_not_found() -> None:
    scheduler = make()
    arrive(scheduler, 1, TEXT)
    step(scheduler)
    placed(scheduler)
    done(scheduler, Verdict([], 0, failure="not finite"))
    arrive(scheduler, 2, TEXT)
    assert step(scheduler) == [(2, TEXT, 0)]


def test_without_prefix_cache_everything_is_computed() -> None:
    scheduler = make(prefix_cache=False)
    served(scheduler, TEXT)
    arrive(scheduler, 1, TEXT)
    arrive(scheduler, 2, TEXT)
    assert step(scheduler) == [(1, TEXT, 0), (2, TEXT, 0)]
    assert [end.cached_tokens for end in run_out(scheduler)] == [0, 0]


# Siblings -------------------------------------------------------------------------------------------------


def test_choices_of_one_request_compute_their_prompt_once() -> None:
    scheduler = make()
    for sequence_id in (1, 2, 3):
        arrive(scheduler, sequence_id, TEXT[:10])
    assert step(scheduler) == [(1, TEXT[:10], 0)]
    work, _ = placed(scheduler)
    # Two whole pages are shared; of the third each gets a copy, in which the prompt's ninth token is there.
    first, second, third = (sequence.pages for sequence in scheduler.running)
    assert first[:2] == second[:2] == third[:2]
    assert work.copies == [(first[2], second[2]), (first[2], third[2])]
    assert len({first[2], second[2], third[2]}) == 3
    assert [(item.tokens, item.start) for item in work.items] == [([30], 10), ([10], 9), ([10], 9)]
    done(scheduler, *[one(30)] * 3)
    assert [end.cached_tokens for end in run_out(scheduler)] == [0, 9, 9]


def test_a_prompt_that_fills_its_pages_needs_no_copy() -> None:
    scheduler = make()
    for sequence_id in (1, 2):
        arrive(scheduler, sequence_id, TEXT[:9])
    step(scheduler)
    work, _ = placed(scheduler)
    assert work.copies == [] and [(item.tokens, item.start) for item in work.items] == [([30], 9), ([9], 8)]


def test_a_prompt_waits_for_the_sequence_that_computes_its_beginning_and_others_pass() -> None:
    scheduler = make(max_step_tokens=10, max_sequences=4)
    arrive(scheduler, 1, TEXT)
    step(scheduler)
    arrive(scheduler, 2, [*TEXT[:14], 40, 41])
    arrive(scheduler, 3, [45, 46])
    # 10 of 20 tokens are computed; the second wants 12 of them, and the third isn't held up by it.
    assert [sequence_id for sequence_id, _, _ in step(scheduler)] == [1, 3]
    assert [sequence.sequence_id for sequence in scheduler.waiting] == [2]
    assert (2, [13, 14, 40, 41], 12) in step(scheduler)


def test_a_sequence_does_not_wait_for_one_behind_it_in_order() -> None:
    scheduler = make(max_step_tokens=10, max_sequences=4)
    arrive(scheduler, 1, TEXT, priority=5)
    step(scheduler)
    arrive(scheduler, 2, TEXT, priority=0)
    began = step(scheduler)
    assert began[0][0] == 2 and began[0][2] == 8


@pytest.mark.parametrize("how", ["cancelled", "preempted"])
def test_when_the_sequence_that_computes_a_prompt_leaves_the_next_takes_over(how: str) -> None:
    scheduler = make(max_step_tokens=10, max_sequences=4)
    for sequence_id in (1, 2, 3):
        arrive(scheduler, sequence_id, TEXT)
    assert step(scheduler) == [(1, TEXT[:10], 0)]
    if how == "cancelled":
        scheduler.handle(Cancelled(1))
        assert step(scheduler) == [(2, TEXT[8:18], 8)]
    else:
        scheduler.planner.preempt(scheduler.running[0])
        assert step(scheduler) == [(1, TEXT[8:18], 8)]
    assert all(end.completion_tokens == 9 for end in run_out(scheduler))


def test_a_prompt_computed_again_can_be_copied_again() -> None:
    scheduler = make()
    arrive(scheduler, 1, TEXT[:10], tokens=20)
    step(scheduler)
    scheduler.planner.preempt(scheduler.running[0])
    step(scheduler)
    arrive(scheduler, 2, TEXT[:10])
    work, _ = placed(scheduler)
    assert len(work.copies) == 1 and [(item.tokens, item.start) for item in work.items] == [([30], 11), ([10], 9)]


def test_sequences_that_wait_for_a_text_can_be_cancelled_and_are_counted() -> None:
    scheduler = make(max_step_tokens=10, max_waiting=2)
    for sequence_id in (1, 2):
        arrive(scheduler, sequence_id, TEXT)
    step(scheduler)
    assert len(scheduler.waiting) == 1
    arrive(scheduler, 3, TEXT)
    assert scheduler.handle(Arrived(request(TEXT), 4))[0].failed.reason == "overloaded"  # type: ignore[union-attr]
    scheduler.handle(Cancelled(2))
    scheduler.handle(Cancelled(3))
    assert len(scheduler.waiting) == 0
    run_out(scheduler)


def test_a_page_is_copied_before_its_owner_may_lose_it() -> None:
    """The sibling is preempted in the very plan that wants its page: the copy comes first."""
    runner = PagedFake(9, 4)
    outcomes, scheduler = run_all(runner, [request(TEXT[:10], max_tokens=20) for _ in range(6)])
    assert scheduler.preemptions > 0 and runner.copies > 0
    assert all(outcome.ids == alone(TEXT[:10], 20, 36)[0] for outcome in outcomes)


# Law 3 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guess", [None, repeat_what_followed])
@pytest.mark.parametrize("pages", [12, 200])
def test_the_text_is_the_same_with_the_cache_and_without(guess: Guess | None, pages: int) -> None:
    prompts = [[*TEXT[: 3 + k % 9], k % 7] for k in range(30)]
    wanted = [replace(request(p, max_tokens=20), cache_salt=("", "a")[k % 3 == 0]) for k, p in enumerate(prompts)]
    runner, plain = PagedFake(pages), PagedFake(pages)
    runner.salts = plain.salts = {number: each.cache_salt for number, each in enumerate(wanted)}
    outcomes, scheduler = run_all(runner, wanted, guess)
    without, _ = run_all(plain, wanted, guess, prefix_cache=False)
    assert [each.ids for each in outcomes] == [each.ids for each in without]
    assert [each.ids for each in outcomes] == [alone(p, 20, min(64, pages * 4))[0] for p in prompts]
    assert runner.rows < plain.rows and scheduler.planner.sharing.found_tokens > 0
