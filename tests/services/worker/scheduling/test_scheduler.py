"""Events in, values out: the manual of what a worker does with its requests."""

from __future__ import annotations

from typing import Any

import pytest
from driving import done, one, placed, request
from msgspec.structs import replace
from paged_fake import EOS, VOCABULARY

from services.api.drafter import Draft
from services.api.messages import Failed, Finished, Run, Speculation, TokenLogprob, Tokens
from services.worker.running.work import DraftBudget, NewSequence, Verdict
from services.worker.scheduling.events import (
    Arrived,
    Cancelled,
    DeadlinePassed,
    DrainBegan,
    Emit,
    EngineFailed,
    Fail,
    Finish,
    Output,
    SequenceEnded,
)
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler


def make(**more: Any) -> Scheduler:
    limits: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "max_context": 64,
        "eos_token_ids": (EOS,),
        "page_tokens": 4,
        "pages": 64,
        "method": "ngram",
        # What sequences with equal texts have of each other: test_prefix.py.
        "prefix_cache": False,
        **more,
    }
    return Scheduler(Limits(**limits))


def arrive(scheduler: Scheduler, sequence_id: int = 1, prompt: list[int] | None = None, **more: Any) -> list[Any]:
    deadline = more.pop("deadline", None)
    return scheduler.handle(Arrived(request(prompt or [1, 2, 3], **more), sequence_id, deadline))


def step(scheduler: Scheduler, *drafts: list[int] | Draft) -> list[tuple[list[int], int, list[int], bool]]:
    """(tokens, start, draft, verify) of the items of the next step; `drafts` are for sequences 1, 2, ..."""
    given = {i: each if isinstance(each, Draft) else Draft(each, "t") for i, each in enumerate(drafts, 1)}
    work, _ = placed(scheduler, given)
    return [(item.tokens, item.start, item.draft.tokens, item.verify) for item in work.items]


def started(tokens: int = 20, **more: Any) -> Scheduler:
    """With one sequence [1, 2, 3, 4] whose last token came out of its prompt [1, 2, 3]."""
    scheduler = make(**more)
    arrive(scheduler, max_tokens=tokens)
    step(scheduler)
    done(scheduler, one(4))
    return scheduler


def emitted(out: list[Output]) -> list[list[int]]:
    return [item.tokens.ids for item in out if isinstance(item, Emit)]


def ended(out: list[Output]) -> list[tuple[int, bool]]:
    """Sequences that are no more, and whether others may learn from them."""
    return [(item.sequence.sequence_id, item.learn) for item in out if isinstance(item, SequenceEnded)]


# The way of a request ----------------------------------------------------------------------------------


def test_a_prompt_is_computed_then_each_step_adds_a_token() -> None:
    scheduler = make(method="naive")
    assert arrive(scheduler, max_tokens=3) == []
    assert step(scheduler) == [([1, 2, 3], 0, [], True)]
    run = Run(length=1, drafted=0, accepted=0)
    [emit] = done(scheduler, one(4))
    assert emit == Emit(1, Tokens(request_id="r", attempt=1, seq=0, ids=[4], runs=[run]))
    assert step(scheduler) == [([4], 3, [], True)]
    assert done(scheduler, one(5)) == [Emit(1, Tokens(request_id="r", attempt=1, seq=1, ids=[5], runs=[run]))]
    assert step(scheduler) == [([5], 4, [], True)]
    out = done(scheduler, one(6))
    emit, finish, _ = out
    assert isinstance(finish, Finish)
    assert finish.finished.reason == "length" and finish.finished.completion_tokens == 3
    assert ended(out) == [(1, False)] and not scheduler.has_work
    scheduler.check_idle()


def test_a_long_prompt_is_computed_in_chunks_beside_decoding_sequences() -> None:
    scheduler = make(max_step_tokens=8, method="naive", max_sequences=4)
    arrive(scheduler, 1, max_tokens=9)
    step(scheduler)
    done(scheduler, one(4))
    arrive(scheduler, 2, list(range(1, 21)), max_tokens=9)
    assert step(scheduler) == [([4], 3, [], True), (list(range(1, 8)), 0, [], False)]
    assert emitted(done(scheduler, one(5), None)) == [[5]]
    assert step(scheduler) == [([5], 4, [], True), (list(range(8, 15)), 7, [], False)]
    done(scheduler, one(6), None)
    assert step(scheduler)[1] == (list(range(15, 21)), 14, [], True)


def test_where_rows_cost_time_a_second_prompt_waits_for_the_end_of_the_first() -> None:
    def lengths(rows_cost: bool) -> list[list[tuple[int, bool]]]:
        """Of two prompts of 200 tokens that arrive together: rows in each of two steps, and whether they verify."""
        scheduler = make(method="naive", rows_cost=rows_cost, max_context=512, pages=256)
        for sequence_id in (1, 2):
            arrive(scheduler, sequence_id, [sequence_id] * 200, max_tokens=9)
        steps = []
        for _ in range(2):
            steps.append([(len(tokens), verify) for tokens, _, _, verify in step(scheduler)])
            done(scheduler, *[one(4) if verify else None for _, verify in steps[-1]])
        return steps

    assert lengths(rows_cost=False) == [[(200, True), (200, True)], [(1, True), (1, True)]]
    # Each running sequence has a row in each step.
    assert lengths(rows_cost=True) == [[(200, True), (1, False)], [(1, True), (199, True)]]


def test_the_prompt_of_an_attempt_holds_what_was_delivered_already() -> None:
    scheduler = make(method="naive")
    arrive(scheduler, so_far=[7, 8], attempt=2, max_tokens=4)
    assert step(scheduler) == [([1, 2, 3, 7, 8], 0, [], True)]
    [emit] = done(scheduler, one(9))
    assert (emit.tokens.seq, emit.tokens.attempt) == (2, 2)
    step(scheduler)
    finish = done(scheduler, one(9))[1]
    assert (finish.finished.completion_tokens, finish.finished.prompt_tokens) == (4, 3)


def test_an_attempt_that_only_missed_its_end_is_finished_at_once() -> None:
    scheduler = make()
    [finish] = arrive(scheduler, so_far=[7, 8], max_tokens=2)
    assert isinstance(finish, Finish) and finish.finished.reason == "length"
    scheduler.check_idle()


def test_the_runner_hears_of_a_sequence_once_and_of_its_end_with_the_next_step() -> None:
    scheduler = make(pages=5, page_tokens=2, max_context=20)
    arrive(scheduler, 1, so_far=[9], max_tokens=20, temperature=0.5)
    work, _ = placed(scheduler)
    [new] = work.new
    assert isinstance(new, NewSequence) and (new.sequence_id, new.text, new.prompt_tokens) == (1, [1, 2, 3, 9], 3)
    assert new.sampling.temperature == 0.5 and new.verification.strategy == "target_match" and new.drafter == ""
    done(scheduler, one(4))
    # What a preempted sequence computes again is known already.
    scheduler.planner.preempt(scheduler.running[0])
    work, _ = placed(scheduler)
    assert (work.new, work.ended, work.items[0].tokens) == ([], [], [1, 2, 3, 9, 4])
    done(scheduler, one(5))
    scheduler.handle(Cancelled(1))
    # One that never ran is unknown to the runner, and its end isn't told.
    arrive(scheduler, 2)
    scheduler.handle(Cancelled(2))
    arrive(scheduler, 3)
    work, _ = placed(scheduler)
    assert ([new.sequence_id for new in work.new], work.ended) == ([3], [1])


# Drafts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "accepted", "rejected"),
    [(Verdict([5, 6, 7, 9], 3), 3, []), (Verdict([5, 6, 9], 2), 2, [7]), (one(9), 0, [5, 6, 7])],
)
@pytest.mark.parametrize("shown", [True, False])
def test_a_draft_is_verified_and_what_is_rejected_is_rolled_back(
    verdict: Verdict, accepted: int, rejected: list[int], shown: bool
) -> None:
    scheduler = make()
    generate = replace(request([1, 2, 3], max_tokens=20), speculation=Speculation(return_drafts=shown))
    scheduler.handle(Arrived(generate, 1))
    step(scheduler)
    done(scheduler, one(4))
    assert step(scheduler, [5, 6, 7]) == [([4], 3, [5, 6, 7], True)]
    [emit] = done(scheduler, verdict)
    assert isinstance(emit, Emit) and emit.tokens.ids == verdict.tokens
    run = Run(length=accepted + 1, drafted=3, accepted=accepted, source="t", rejected=rejected if shown else [])
    assert emit.tokens.runs == [run]
    # Places of rejected tokens are computed anew.
    assert step(scheduler) == [([9], 4 + accepted, [], True)]


def test_tokens_of_a_tree_off_the_accepted_path_are_returned_as_rejected() -> None:
    scheduler = make(branch_pages=2)
    generate = replace(request([1, 2, 3], max_tokens=20), speculation=Speculation(return_drafts=True))
    scheduler.handle(Arrived(generate, 1))
    step(scheduler)
    done(scheduler, one(4))
    step(scheduler, Draft([5, 6, 7, 8], "t", parents=[-1, -1, 0, 1]))
    [emit] = done(scheduler, Verdict([6, 8, 9], 2))
    assert isinstance(emit, Emit)
    assert emit.tokens.runs == [Run(length=3, drafted=4, accepted=2, source="t", rejected=[5, 7])]


def test_a_tree_without_pages_for_branches_is_its_first_path() -> None:
    tree = Draft([5, 6, 7], "t", parents=[-1, -1, 0], confidence=[0.9, 0.1, 0.8])
    assert step(started(), tree) == [([4], 3, [5, 7], True)]
    assert step(started(branch_pages=2), tree) == [([4], 3, [5, 6, 7], True)]


def test_pages_for_branches_are_those_of_all_trees_of_a_step() -> None:
    tree = Draft([5, 6, 7], "t", parents=[-1, -1, 0])
    scheduler = make(branch_pages=1)
    for sequence_id in (1, 2):
        arrive(scheduler, sequence_id, max_tokens=20)
    step(scheduler)
    done(scheduler, one(4), one(4))
    assert [work[2] for work in step(scheduler, tree, tree)] == [[5, 6, 7], [5, 7]]


@pytest.mark.parametrize(
    ("tokens", "more", "verified"),
    [
        # Its own longest draft; and the last token of a text is always the target model's own.
        (20, {"num_speculative_tokens": 2}, [5, 6]),
        (3, {}, [5]),
        (1000, {"max_context": 7}, [5, 6]),
        (20, {"max_step_tokens": 4}, [5, 6, 7]),
        (20, {"max_step_tokens": 3}, [5, 6]),
    ],
)
def test_a_draft_is_cut_to_what_is_allowed(tokens: int, more: dict[str, Any], verified: list[int]) -> None:
    assert step(started(tokens, **more), [5, 6, 7, 8, 9, 10, 11, 12, 13]) == [([4], 3, verified, True)]


def test_a_draft_that_reaches_the_end_of_the_context_ends_the_text() -> None:
    scheduler = started(tokens=1000, max_context=7)
    step(scheduler, [5, 6])
    emit, finish, _ = done(scheduler, Verdict([5, 6, 7], 2))
    assert isinstance(emit, Emit) and emit.tokens.ids == [5, 6, 7]
    assert isinstance(finish, Finish) and finish.finished.reason == "length"
    scheduler.check_idle()


@pytest.mark.parametrize(
    "more", [{"method": "naive"}, {"method": "off"}, {"drafts": 0}, {"max_tokens": 2}], ids=str
)
def test_a_sequence_that_wants_no_draft_gets_none(more: dict[str, Any]) -> None:
    scheduler = make()
    arrive(scheduler, **{"max_tokens": 9, **more})
    # Nor does a prompt, whatever is drafted behind it.
    assert step(scheduler, [5]) == [([1, 2, 3], 0, [], True)]
    done(scheduler, one(4))
    assert step(scheduler, [5]) == [([4], 3, [], True)]


def test_a_text_that_is_computed_again_has_no_draft() -> None:
    scheduler = started()
    scheduler.planner.preempt(scheduler.running[0])
    assert step(scheduler, [5]) == [([1, 2, 3, 4], 0, [], True)]
    done(scheduler, one(5))
    assert step(scheduler, [6]) == [([5], 4, [6], True)]


def test_a_step_that_computes_a_text_again_counts_as_no_verify_step() -> None:
    scheduler = started()
    scheduler.planner.preempt(scheduler.running[0])
    step(scheduler)
    done(scheduler, one(5))
    step(scheduler, [6])
    done(scheduler, Verdict([6, 7], 1))
    stats = scheduler.running[0].stats()
    assert (stats.steps, stats.empty, stats.accepted) == (1, 0, 1)


def test_drafts_share_the_rows_that_decoding_leaves() -> None:
    scheduler = make(max_step_tokens=16, max_sequences=4)
    for sequence_id in range(1, 5):
        arrive(scheduler, sequence_id, max_tokens=40)
    step(scheduler)
    done(scheduler, *(one(4) for _ in range(4)))
    assert [len(work[2]) for work in step(scheduler, [5], [5] * 8, [5] * 8, [5])] == [1, 8, 3, 0]


def test_beside_prompts_a_quarter_of_the_rows_is_not_given_to_drafts() -> None:
    scheduler = make(max_step_tokens=16, max_sequences=2)
    arrive(scheduler, 1, max_tokens=40)
    step(scheduler)
    done(scheduler, one(4))
    arrive(scheduler, 2, [5] * 60)
    # Rows for drafts are as many as in the last step, and one more each.
    assert [(len(tokens), len(draft)) for tokens, _, draft, _ in step(scheduler, [5] * 8)] == [(1, 1), (14, 0)]
    done(scheduler, one(4), None)
    assert [(len(tokens), len(draft)) for tokens, _, draft, _ in step(scheduler, [5] * 8)] == [(1, 2), (13, 0)]


def test_the_workers_head_is_told_how_much_to_draft_next() -> None:
    scheduler = started()
    scheduler.schedule()
    assert [item.next_budget for item in scheduler.place({}, {1: DraftBudget(5), 7: DraftBudget(9)}).items] == [5]


# Whose text may be learned from ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("namespace", "learn", "end", "learned"),
    [
        ("n", True, "finish", True),
        ("n", True, "cancel", True),
        ("n", True, "fail", False),
        ("n", True, "cancel before a token", False),
        ("n", False, "finish", False),
        ("", True, "finish", False),
    ],
)
def test_what_ended_well_may_be_learned_from_where_the_request_allows_it(
    namespace: str, learn: bool, end: str, learned: bool
) -> None:
    scheduler = make()
    generate = replace(request([1, 2, 3], max_tokens=2), namespace=namespace, speculation=Speculation(learn=learn))
    scheduler.handle(Arrived(generate, 1))
    if end != "cancel before a token":
        step(scheduler)
        done(scheduler, one(4))
    if end.startswith("cancel"):
        out = scheduler.handle(Cancelled(1))
    else:
        step(scheduler)
        out = done(scheduler, one(5) if end == "finish" else Verdict([], 0, failure="no"))
    assert ended(out) == [(1, learned)]


# Methods and lengths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "asked", "prediction", "method"),
    [
        ("ngram", "", [], "ngram"),
        ("ngram", "off", [], "naive"),
        ("auto", "off", [5], "naive"),
        ("ngram", "", [5], "prediction"),
        ("auto", "", [5], "auto"),
        ("ngram", "suffix", [5], "suffix"),
    ],
)
def test_which_method_a_request_gets(own: str, asked: str, prediction: list[int], method: str) -> None:
    scheduler = make(method=own)
    scheduler.handle(Arrived(replace(request([1, 2, 3], method=asked), prediction=prediction), 1))
    [sequence] = scheduler.waiting
    assert sequence.method == method and (sequence.draft_length > 0) == (method != "naive")


@pytest.mark.parametrize(
    ("setting", "method", "asked", "longest"),
    [
        (-1, "ngram", -1, 8), (-1, "auto", -1, 48), (-1, "ngram", 20, 20), (-1, "auto", 99, 48), (4, "auto", -1, 4),
        (4, "ngram", 9, 4),
    ],
)  # fmt: skip
def test_draft_length_by_method_and_request(setting: int, method: str, asked: int, longest: int) -> None:
    scheduler = make(num_speculative_tokens=setting)
    arrive(scheduler, method=method, drafts=asked)
    assert next(iter(scheduler.waiting)).draft_length == longest


# Ends inside a run -------------------------------------------------------------------------------------


def test_eos_inside_an_accepted_run_ends_the_text_before_it() -> None:
    scheduler = started()
    step(scheduler, [5, EOS, 6])
    emit, finish, _ = done(scheduler, Verdict([5, EOS, 6, 7], 3))
    assert emit.tokens.ids == [5]
    assert emit.tokens.runs == [Run(length=1, drafted=3, accepted=1, source="t")]
    assert (finish.finished.reason, finish.finished.stop_token) == ("stop", EOS)
    assert finish.finished.completion_tokens == 2
    # The drafted 5 and EOS counted; 6 was behind the end.
    assert finish.finished.speculation.accepted == 2
    scheduler.check_idle()


def test_eos_alone_ends_the_text_without_a_token() -> None:
    scheduler = started()
    step(scheduler)
    finish, _ = done(scheduler, one(EOS))
    assert finish.finished.reason == "stop" and finish.finished.completion_tokens == 1


def test_logprobs_are_cut_with_the_tokens() -> None:
    scheduler = make()
    arrive(scheduler, max_tokens=20, logprobs=0)
    step(scheduler)
    done(scheduler, Verdict([4], 0, [TokenLogprob(logprob=-4.0)]))
    step(scheduler, [5, 6, EOS])
    verdict = Verdict([5, 6, EOS, 7], 3, [TokenLogprob(logprob=-float(i)) for i in range(4)])
    emit = done(scheduler, verdict)[0]
    assert emit.tokens.ids == [5, 6]
    assert [value.logprob for value in emit.tokens.logprobs] == [-0.0, -1.0]


def test_eos_is_a_token_like_others_when_it_is_ignored_and_stop_ids_still_stop() -> None:
    scheduler = make()
    arrive(scheduler, max_tokens=20, ignore_eos=True, stop_token_ids=[9])
    step(scheduler)
    assert emitted(done(scheduler, one(EOS))) == [[EOS]]
    step(scheduler)
    finish, _ = done(scheduler, one(9))
    assert finish.finished.stop_token == 9


def test_no_stop_id_counts_before_min_tokens() -> None:
    scheduler = make()
    arrive(scheduler, max_tokens=20, min_tokens=3)
    step(scheduler)
    assert emitted(done(scheduler, Verdict([EOS], 0))) == [[EOS]]
    step(scheduler, [EOS, 5])
    assert emitted(done(scheduler, Verdict([EOS, 5, 6], 2))) == [[EOS, 5, 6]]
    step(scheduler)
    assert done(scheduler, one(EOS))[0].finished.stop_token == EOS


def test_a_run_longer_than_max_tokens_is_cut() -> None:
    scheduler = started(tokens=3)
    step(scheduler)
    emit, finish, _ = done(scheduler, Verdict([5, 6, 7, 8], 3))
    assert emit.tokens.ids == [5, 6]
    assert (finish.finished.reason, finish.finished.completion_tokens) == ("length", 3)


def test_the_statistics_count_draft_tokens_and_never_the_bonus() -> None:
    scheduler = started(tokens=9)
    step(scheduler, [5, 6, 7])
    done(scheduler, Verdict([5, 6, 9], 2))
    step(scheduler)
    done(scheduler, one(9))
    step(scheduler, [5])
    done(scheduler, Verdict([5, 6], 1))
    step(scheduler)
    finish = done(scheduler, one(EOS))[0]
    stats = finish.finished.speculation
    assert (stats.steps, stats.empty, stats.drafted, stats.accepted) == (4, 2, 4, 3)
    assert (stats.accepted_per_position, stats.drafted_per_position) == ([2, 1], [2, 1, 1])


# Refusals ----------------------------------------------------------------------------------------------


def refusal(scheduler: Scheduler, sequence_id: int = 1, **more: Any) -> Failed:
    [fail] = arrive(scheduler, sequence_id, **more)
    assert isinstance(fail, Fail) and fail.sequence_id == sequence_id
    return fail.failed


def test_a_prompt_that_can_never_fit_is_refused() -> None:
    failed = refusal(make(), prompt=[1] * 64)
    assert (failed.reason, failed.retryable) == ("too_long", False)
    assert refusal(make(pages=4), prompt=[1] * 16).reason == "too_long"
    assert arrive(make(pages=4), prompt=[1] * 15) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": [VOCABULARY]},
        {"prompt": [-1]},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 1.5},
        {"min_p": float("nan")},
        {"repetition_penalty": 0.0},
        {"logit_bias": {VOCABULARY: 1.0}},
        {"logit_bias": {1: float("inf")}},
        {"logprobs": 1000},
        {"max_tokens": -1},
        {"method": "astrology"},
        {"strategy": "hope"},
    ],
)
def test_what_makes_no_sense_is_refused_as_invalid(wrong: dict[str, Any]) -> None:
    scheduler = make()
    failed = refusal(scheduler, **wrong)
    assert (failed.reason, failed.retryable) == ("invalid", False)
    scheduler.check_idle()


def test_more_than_may_wait_are_refused_as_overloaded() -> None:
    scheduler = make(max_waiting=2)
    arrive(scheduler, 1)
    arrive(scheduler, 2)
    failed = refusal(scheduler, 3)
    assert (failed.reason, failed.retryable) == ("overloaded", True)


def test_while_draining_new_requests_are_refused_and_others_continue() -> None:
    scheduler = started()
    scheduler.handle(DrainBegan())
    failed = refusal(scheduler, 2)
    assert (failed.reason, failed.retryable) == ("draining", True)
    assert step(scheduler) == [([4], 3, [], True)]


# Ends from outside -------------------------------------------------------------------------------------


def test_a_cancelled_request_ends_without_output_and_frees_its_pages() -> None:
    scheduler = started()
    assert ended(scheduler.handle(Cancelled(1))) == [(1, False)]
    scheduler.check_idle()
    assert scheduler.handle(Cancelled(1)) == []


def test_a_deadline_ends_running_and_waiting_requests() -> None:
    scheduler = make(max_sequences=1)
    arrive(scheduler, 1, deadline=10.0)
    step(scheduler)
    done(scheduler, one(4))
    arrive(scheduler, 2, deadline=5.0)
    assert scheduler.next_deadline == 5.0
    fail, _ = scheduler.handle(DeadlinePassed(5.0))
    assert (fail.sequence_id, fail.failed.reason) == (2, "deadline")
    fail, _ = scheduler.handle(DeadlinePassed(11.0))
    assert fail.sequence_id == 1
    scheduler.check_idle()


def test_a_sequence_the_engine_fails_ends_alone() -> None:
    scheduler = make(method="naive")
    arrive(scheduler, 1)
    arrive(scheduler, 2)
    step(scheduler)
    out = done(scheduler, Verdict([], 0, failure="not finite"), one(4))
    fail, _, emit = out
    assert (fail.sequence_id, fail.failed.reason, fail.failed.message) == (1, "engine", "not finite")
    assert emit.sequence_id == 2 and ended(out) == [(1, False)]


def test_a_failed_engine_fails_every_request_retryably() -> None:
    scheduler = make(max_sequences=1)
    arrive(scheduler, 1)
    arrive(scheduler, 2)
    step(scheduler)
    # In the middle of a step.
    fails = [item for item in scheduler.handle(EngineFailed("gone")) if isinstance(item, Fail)]
    assert [(f.sequence_id, f.failed.reason, f.failed.retryable) for f in fails] == [
        (1, "engine", True),
        (2, "engine", True),
    ]
    scheduler.check_idle()


# Pages -------------------------------------------------------------------------------------------------


def test_the_last_in_order_is_preempted_and_computed_again_with_its_text() -> None:
    # Two texts of 3 tokens and the next one take 2 pages; the third page of the first comes from the second.
    scheduler = make(pages=5, page_tokens=2, max_context=20, method="naive")
    arrive(scheduler, 1, max_tokens=5)
    step(scheduler)
    done(scheduler, one(4))
    arrive(scheduler, 2, max_tokens=5)
    assert len(step(scheduler)) == 2
    done(scheduler, one(5), one(4))
    step(scheduler)
    done(scheduler, one(6), one(5))
    assert scheduler.preemptions == 0
    # [1 2 3 4 5 6] needs a third page and takes the last; [1 2 3 4 5] needs one, too, and is the youngest.
    assert step(scheduler) == [([6], 5, [], True)]
    assert scheduler.preemptions == 1 and len(scheduler.waiting) == 1
    finish = done(scheduler, one(7))
    while not any(isinstance(item, Finish) for item in finish):
        assert len(step(scheduler)) == 1
        finish = done(scheduler, one(7))
    assert step(scheduler) == [([1, 2, 3, 4, 5], 0, [], True)]
    [emit] = done(scheduler, one(6))
    assert (emit.tokens.seq, emit.tokens.ids) == (2, [6])


def test_a_request_is_let_in_only_if_each_that_runs_can_still_have_a_page() -> None:
    """Else the last one in would lose its pages at once, and compute its prompt again and again."""
    scheduler = make(pages=6, page_tokens=2, max_context=12)
    for sequence_id in (1, 2, 3):
        arrive(scheduler, sequence_id, max_tokens=3)
    assert len(step(scheduler)) == 2 and [each.sequence_id for each in scheduler.waiting] == [3]
    while scheduler.has_work:
        done(scheduler, *[one(4)] * len(scheduler.running))
        if scheduler.has_work:
            step(scheduler)
    assert scheduler.preemptions == 0


def test_a_draft_takes_no_pages_from_a_running_sequence() -> None:
    scheduler = make(pages=4, page_tokens=2, max_context=8)
    arrive(scheduler, 1, max_tokens=5)
    step(scheduler)
    done(scheduler, one(4))
    arrive(scheduler, 2, prompt=[1], max_tokens=5)
    step(scheduler)
    done(scheduler, one(5), one(2))
    # One page is free: room for the text and one drafted token, and none for the second.
    work = step(scheduler, [6, 7])
    assert work[0] == ([5], 4, [6], True) and len(work) == 2
    assert scheduler.preemptions == 0


def test_no_request_passes_one_that_waits_for_pages() -> None:
    scheduler = make(pages=8, page_tokens=2, max_context=16)
    arrive(scheduler, 1, max_tokens=9)
    step(scheduler)
    done(scheduler, one(4))
    arrive(scheduler, 2, prompt=[1] * 13, max_tokens=2)
    arrive(scheduler, 3, prompt=[1], max_tokens=2)
    assert len(step(scheduler)) == 1
    assert [sequence.sequence_id for sequence in scheduler.waiting] == [2, 3]


def test_a_lower_priority_number_goes_first() -> None:
    scheduler = make(max_sequences=1)
    arrive(scheduler, 1)
    scheduler.handle(Arrived(replace(request([5, 6, 7]), priority=-1), 2))
    assert step(scheduler) == [([5, 6, 7], 0, [], True)]


def test_finished_carries_its_request() -> None:
    scheduler = make()
    arrive(scheduler, name="abc", attempt=3, max_tokens=1)
    step(scheduler)
    finish = done(scheduler, one(4))[1]
    assert isinstance(finish.finished, Finished)
    assert (finish.finished.request_id, finish.finished.attempt) == ("abc", 3)


