"""Events in, instructions out: the manual of what a target does with its requests."""

from __future__ import annotations

from typing import Any

import pytest
from mesh_around import request
from msgspec.structs import replace
from paged_fake import EOS, VOCABULARY

from services.api.drafts import DraftItem
from services.api.messages import Failed, Finished, Run, Speculation, Tokens
from services.worker.running.runner import Verdict
from services.worker.scheduling.events import (
    Arrived,
    AskAhead,
    AskDrafts,
    Cancelled,
    DeadlinePassed,
    DraftsReady,
    Drain,
    Emit,
    EngineFailed,
    Fail,
    Finish,
    Forget,
    PagesLost,
    RunStep,
    StepDone,
    StepWanted,
    SwitchOff,
    TimeToSpare,
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
        # What sequences with equal texts have of each other: test_sharing.py.
        "prefix_cache": False,
        **more,
    }
    return Scheduler(Limits(**limits))


def arrive(scheduler: Scheduler, stream: int = 1, prompt: list[int] | None = None, **more: Any) -> list[Any]:
    deadline = more.pop("deadline", None)
    return scheduler.handle(Arrived(request(prompt or [1, 2, 3], **more), stream, deadline))


def step(scheduler: Scheduler) -> list[tuple[list[int], int, list[int], bool]]:
    """(tokens, start, draft, verify) of the work that is wanted next."""
    instructions = scheduler.handle(StepWanted())
    if not instructions:
        return []
    *_, run = instructions
    assert isinstance(run, RunStep)
    return [(item.tokens, item.start, item.draft, item.verify) for item in run.work]


def done(scheduler: Scheduler, *verdicts: Verdict | None) -> list[Any]:
    return scheduler.handle(StepDone(list(verdicts)))


def one(token: int) -> Verdict:
    return Verdict([token], 0)


def draft(sequence: int, committed: int, tokens: list[int], **more: Any) -> DraftsReady:
    return DraftsReady([DraftItem(sequence_id=sequence, committed=committed, tokens=tokens, source="ngram", **more)])


def started(tokens: int = 20, **more: Any) -> Scheduler:
    """With one sequence [1, 2, 3, 4] whose last token came out of its prompt [1, 2, 3]."""
    scheduler = make(**more)
    arrive(scheduler, max_tokens=tokens)
    step(scheduler)
    done(scheduler, one(4))
    return scheduler


def emitted(instructions: list[Any]) -> list[list[int]]:
    return [item.tokens.ids for item in instructions if isinstance(item, Emit)]


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
    emit, finish, forget = done(scheduler, one(6))
    assert isinstance(finish, Finish) and isinstance(forget, Forget)
    assert finish.finished.reason == "length" and finish.finished.completion_tokens == 3
    assert forget == Forget([1])
    assert step(scheduler) == []
    scheduler.check_idle()


def test_a_long_prompt_is_computed_in_chunks_beside_those_who_decode() -> None:
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


# Drafts ------------------------------------------------------------------------------------------------


def test_drafts_are_asked_for_when_a_step_is_done_and_verified_in_the_next() -> None:
    scheduler = make()
    arrive(scheduler, max_tokens=20)
    step(scheduler)
    asked = done(scheduler, one(4))[-1]
    assert isinstance(asked, AskDrafts)
    [ask] = asked.asks
    assert (ask.sequence.token_ids, ask.budget) == ([1, 2, 3, 4], 8)
    assert scheduler.handle(draft(1, 4, [5, 6, 7])) == []
    assert step(scheduler) == [([4, 5, 6, 7], 3, [5, 6, 7], True)]
    [emit, _] = done(scheduler, Verdict([5, 6, 9], 2))
    assert emit.tokens.ids == [5, 6, 9]
    assert emit.tokens.runs == [Run(length=3, drafted=3, accepted=2, source="ngram")]
    # The third draft is rolled back: its place is computed anew.
    assert step(scheduler) == [([9], 6, [], True)]


def test_who_wants_to_see_drafts_is_told_what_was_rejected() -> None:
    scheduler = make()
    asked = replace(request([1, 2, 3], max_tokens=20), speculation=Speculation(return_drafts=True))
    scheduler.handle(Arrived(asked, 1, None))
    step(scheduler)
    done(scheduler, one(4))
    scheduler.handle(draft(1, 4, [5, 6, 7]))
    step(scheduler)
    [emit, _] = done(scheduler, Verdict([5, 9], 1))
    assert emit.tokens.runs == [Run(length=2, drafted=3, accepted=1, source="ngram", rejected=[6, 7])]


def test_accepted_count_zero_emits_the_targets_own_token_alone() -> None:
    scheduler = started()
    scheduler.handle(draft(1, 4, [5, 6, 7]))
    step(scheduler)
    [emit, _] = done(scheduler, one(9))
    assert emit.tokens.ids == [9] and emit.tokens.runs == [Run(length=1, drafted=3, accepted=0, source="ngram")]
    assert step(scheduler) == [([9], 4, [], True)]


@pytest.mark.parametrize(
    "hostile",
    [
        draft(1, 4, [VOCABULARY]),
        draft(1, 4, [-1]),
        draft(1, 4, [5, 10**12]),
        draft(1, 4, []),
        draft(1, 3, [5]),
        draft(1, 5, [5]),
        draft(2, 4, [5]),
        draft(-1, 4, [5]),
        draft(1, 4, [5, 6], parents=[-1]),
        draft(1, 4, [5, 5], parents=[-1, -1]),
        draft(1, 4, [5], parents=[7]),
    ],
)
def test_empty_late_and_impossible_drafts_are_as_none(hostile: DraftsReady) -> None:
    scheduler = started()
    assert scheduler.handle(hostile) == []
    assert step(scheduler) == [([4], 3, [], True)]


def test_a_chain_may_say_its_parents() -> None:
    scheduler = started()
    scheduler.handle(draft(1, 4, [5, 6], parents=[-1, 0]))
    assert step(scheduler) == [([4, 5, 6], 3, [5, 6], True)]


def test_of_a_tree_only_the_first_way_is_verified_where_there_are_no_pages_for_branches() -> None:
    tree = draft(1, 4, [5, 6, 7], parents=[-1, -1, 0], chances=[0.9, 0.1, 0.9])
    scheduler = started()
    scheduler.handle(tree)
    assert step(scheduler) == [([4, 5, 7], 3, [5, 7], True)]
    scheduler = started(branch_pages=2)
    scheduler.handle(tree)
    # The likeliest first.
    assert step(scheduler) == [([4, 5, 7, 6], 3, [5, 7, 6], True)]


def test_a_draft_is_cut_to_its_length_and_before_max_tokens() -> None:
    scheduler = started(num_speculative_tokens=2)
    scheduler.handle(draft(1, 4, [5, 6, 7]))
    assert step(scheduler) == [([4, 5, 6], 3, [5, 6], True)]
    scheduler = started(tokens=3)
    scheduler.handle(draft(1, 4, [5, 6, 7]))
    assert step(scheduler) == [([4, 5], 3, [5], True)]


def test_a_draft_is_cut_before_the_context_ends() -> None:
    scheduler = started(tokens=1000, max_context=7)
    scheduler.handle(draft(1, 4, [5, 6, 7, 8, 9]))
    assert step(scheduler) == [([4, 5, 6], 3, [5, 6], True)]
    emit, finish, _ = done(scheduler, Verdict([5, 6, 7], 2))
    assert emit.tokens.ids == [5, 6, 7]
    assert finish.finished.reason == "length"
    scheduler.check_idle()


def test_no_draft_is_asked_for_the_last_token() -> None:
    scheduler = make()
    arrive(scheduler, max_tokens=2)
    step(scheduler)
    assert not any(isinstance(item, AskDrafts) for item in done(scheduler, one(4)))


def test_a_naive_request_asks_nobody() -> None:
    for more in ({"method": "naive"}, {"drafts": 0}):
        scheduler = make()
        arrive(scheduler, max_tokens=9, **more)
        step(scheduler)
        assert not any(isinstance(item, AskDrafts) for item in done(scheduler, one(4)))
        scheduler.handle(draft(1, 4, [5]))
        assert step(scheduler) == [([4], 3, [], True)]


def test_drafts_share_the_rows_that_decoding_leaves() -> None:
    scheduler = make(max_step_tokens=16, max_sequences=4)
    for stream in range(1, 5):
        arrive(scheduler, stream, max_tokens=40)
    step(scheduler)
    asked = done(scheduler, *(one(4) for _ in range(4)))[-1]
    assert [ask.budget for ask in asked.asks] == [3, 3, 3, 3]
    for sequence, tokens in ((1, [5]), (2, [5] * 8), (3, [5] * 8), (4, [])):
        scheduler.handle(draft(sequence, 4, tokens))
    lengths = [len(work[2]) for work in step(scheduler)]
    assert lengths == [1, 6, 5, 0]


# Leases ------------------------------------------------------------------------------------------------


def asks(instructions: list[Any], kind: type = AskDrafts) -> list[tuple[int, int, list[int]]]:
    found = [ask for item in instructions if isinstance(item, kind) for ask in item.asks]
    return [(ask.sequence.length, ask.budget, ask.ahead) for ask in found]


def test_what_is_left_of_a_draft_is_the_next_one_without_a_question() -> None:
    scheduler = started(num_speculative_tokens=2)
    scheduler.handle(draft(1, 4, [5, 6, 7, 8, 9]))
    assert step(scheduler)[0][2] == [5, 6]
    assert asks(done(scheduler, Verdict([5, 6, 7], 2))) == []
    assert step(scheduler) == [([7, 8, 9], 6, [8, 9], True)]
    # Counted when the step is on its way.
    assert not any(scheduler.drafting.counts.ways.values())
    scheduler.handle(TimeToSpare())
    assert scheduler.drafting.counts.ways == {"lease": 1, "ahead": 0, "asked": 1, "none": 0}


def test_a_text_that_goes_another_way_ends_the_lease_and_asks_anew() -> None:
    scheduler = started(num_speculative_tokens=2)
    scheduler.handle(draft(1, 4, [5, 6, 7, 8, 9]))
    step(scheduler)
    assert asks(done(scheduler, Verdict([5, 6, 1], 2))) == [(7, 2, [])]
    assert step(scheduler)[0][2] == []
    scheduler.handle(TimeToSpare())
    assert scheduler.drafting.counts.dropped == 1


def test_the_next_draft_is_asked_for_while_this_one_is_verified_and_used_if_all_of_it_stood() -> None:
    for verdict, drafted in ((Verdict([5, 6, 7], 2), [8]), (Verdict([5, 6, 3], 2), []), (Verdict([5, 1], 1), [])):
        scheduler = started(num_speculative_tokens=2)
        scheduler.handle(draft(1, 4, [5, 6]))
        assert step(scheduler)[0][2] == [5, 6]
        # The token after the draft is the target's own, and then come two more.
        assert asks(scheduler.handle(TimeToSpare()), AskAhead) == [(4, 3, [5, 6])]
        [item] = draft(1, 6, [7, 8]).drafts
        scheduler.handle(DraftsReady([item], ahead=True, followed={1: [5, 6]}))
        asked = asks(done(scheduler, verdict))
        assert (asked == []) == bool(drafted)
        assert step(scheduler)[0][2] == drafted


def test_a_late_answer_is_used_where_the_text_agrees_with_it() -> None:
    scheduler = started()
    step(scheduler)
    done(scheduler, one(5))
    scheduler.handle(draft(1, 4, [5, 6, 7]))
    assert step(scheduler) == [([5, 6, 7], 4, [6, 7], True)]


def test_a_lease_outlives_preemption() -> None:
    scheduler = started()
    scheduler.handle(draft(1, 4, [5, 6, 7]))
    scheduler.handle(PagesLost())
    assert step(scheduler) == [([1, 2, 3, 4], 0, [], True)]
    done(scheduler, one(5))
    assert step(scheduler) == [([5, 6, 7], 4, [6, 7], True)]


def test_the_whole_text_is_sent_ahead_while_the_prompt_is_computed_where_drafts_are_weighed() -> None:
    scheduler = make(method="auto")
    arrive(scheduler, max_tokens=20)
    step(scheduler)
    assert asks(scheduler.handle(TimeToSpare()), AskAhead) == [(3, 19, [])]


# Whose text may be learned from ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("namespace", "learn", "end", "learned"),
    [
        ("n", True, "finish", [1]),
        ("n", True, "cancel", [1]),
        ("n", True, "fail", []),
        ("n", False, "finish", []),
        ("", True, "finish", []),
    ],
)
def test_what_ended_well_may_be_learned_from_where_the_request_allows_it(
    namespace: str, learn: bool, end: str, learned: list[int]
) -> None:
    scheduler = make()
    generate = replace(request([1, 2, 3], max_tokens=2), namespace=namespace, speculation=Speculation(learn=learn))
    scheduler.handle(Arrived(generate, 1))
    step(scheduler)
    done(scheduler, one(4))
    if end == "cancel":
        told = scheduler.handle(Cancelled(1))
    else:
        step(scheduler)
        told = done(scheduler, one(5) if end == "finish" else Verdict([], 0, failure="no"))
    [forget] = [item for item in told if isinstance(item, Forget)]
    assert (forget.sequence_ids, [sequence.id for sequence in forget.learned]) == ([1], learned)


def test_a_replay_asks_nobody_and_is_not_learned_from() -> None:
    scheduler = make(method="auto")
    generate = replace(request([1, 2, 3], max_tokens=3, method="naive"), namespace="n")
    scheduler.handle(Arrived(generate, -1))
    told = []
    while scheduler.has_work:
        told += scheduler.handle(StepWanted())
        told += scheduler.handle(TimeToSpare())
        told += done(scheduler, one(4))
    assert not any(isinstance(item, AskDrafts | AskAhead) for item in told)
    assert [item.learned for item in told if isinstance(item, Forget)] == [[]]


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
def test_how_long_drafts_may_be(setting: int, method: str, asked: int, longest: int) -> None:
    scheduler = make(num_speculative_tokens=setting)
    arrive(scheduler, method=method, drafts=asked)
    assert next(iter(scheduler.waiting)).draft_length == longest


# Ends inside a run -------------------------------------------------------------------------------------


def test_eos_inside_an_accepted_run_ends_the_text_before_it() -> None:
    scheduler = started()
    scheduler.handle(draft(1, 4, [5, EOS, 6]))
    step(scheduler)
    emit, finish, _ = done(scheduler, Verdict([5, EOS, 6, 7], 3))
    assert emit.tokens.ids == [5]
    assert emit.tokens.runs == [Run(length=1, drafted=3, accepted=1, source="ngram")]
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
    from services.api.messages import TokenLogprob

    scheduler = make()
    arrive(scheduler, max_tokens=20, logprobs=0)
    step(scheduler)
    done(scheduler, Verdict([4], 0, [TokenLogprob(logprob=-4.0)]))
    scheduler.handle(draft(1, 4, [5, 6, EOS]))
    step(scheduler)
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
    scheduler.handle(draft(1, 4, [EOS, 5]))
    step(scheduler)
    assert emitted(done(scheduler, Verdict([EOS, 5, 6], 2))) == [[EOS, 5, 6]]
    step(scheduler)
    assert done(scheduler, one(EOS))[0].finished.stop_token == EOS


def test_a_run_longer_than_max_tokens_is_cut() -> None:
    scheduler = started(tokens=3)
    step(scheduler)
    emit, finish, _ = done(scheduler, Verdict([5, 6, 7, 8], 3))
    assert emit.tokens.ids == [5, 6]
    assert (finish.finished.reason, finish.finished.completion_tokens) == ("length", 3)


@pytest.mark.parametrize("then", [TimeToSpare(), Cancelled(1), StepWanted(), EngineFailed("x")])
def test_a_step_is_counted_while_the_next_one_runs_or_when_somebody_goes(then: Any) -> None:
    scheduler = started()
    scheduler.handle(draft(1, 4, [5, 6]))
    step(scheduler)
    done(scheduler, Verdict([5, 6, 7], 2))
    [tally] = scheduler.tallies.values()
    assert tally.steps == 0
    scheduler.handle(then)
    if then == StepWanted():
        # Whatever the runner forgot to call.
        done(scheduler, one(8))
    assert (tally.steps, tally.drafted, tally.accepted, tally.accepted_at.counts()) == (1, 2, 2, [1, 1])


def test_the_statistics_count_draft_tokens_and_never_the_bonus() -> None:
    scheduler = started(tokens=9)
    scheduler.handle(draft(1, 4, [5, 6, 7]))
    step(scheduler)
    done(scheduler, Verdict([5, 6, 9], 2))
    step(scheduler)
    done(scheduler, one(9))
    scheduler.handle(draft(1, 8, [5]))
    step(scheduler)
    done(scheduler, Verdict([5, 6], 1))
    step(scheduler)
    finish = done(scheduler, one(EOS))[0]
    stats = finish.finished.speculation
    assert (stats.steps, stats.empty, stats.drafted, stats.accepted) == (4, 2, 4, 3)
    assert (stats.accepted_per_position, stats.drafted_per_position) == ([2, 1], [2, 1, 1])


# Refusals ----------------------------------------------------------------------------------------------


def refusal(scheduler: Scheduler, stream: int = 1, **more: Any) -> Failed:
    [fail] = arrive(scheduler, stream, **more)
    assert isinstance(fail, Fail) and fail.stream == stream
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


def test_while_draining_the_new_are_refused_and_the_rest_goes_on() -> None:
    scheduler = started()
    scheduler.handle(Drain())
    failed = refusal(scheduler, 2)
    assert (failed.reason, failed.retryable) == ("draining", True)
    assert step(scheduler) == [([4], 3, [], True)]


# Ends from outside -------------------------------------------------------------------------------------


def test_a_cancelled_request_ends_without_a_word_and_frees_its_pages() -> None:
    scheduler = started()
    assert scheduler.handle(Cancelled(1)) == [Forget([1])]
    scheduler.check_idle()
    assert scheduler.handle(Cancelled(1)) == []


def test_a_request_cancelled_while_its_step_runs_gets_no_token() -> None:
    scheduler = started()
    step(scheduler)
    scheduler.handle(Cancelled(1))
    assert done(scheduler, one(5)) == []
    scheduler.check_idle()


def test_a_deadline_ends_running_and_waiting_requests() -> None:
    scheduler = make(max_sequences=1)
    arrive(scheduler, 1, deadline=10.0)
    step(scheduler)
    done(scheduler, one(4))
    arrive(scheduler, 2, deadline=5.0)
    assert scheduler.next_deadline == 5.0
    fail, _ = scheduler.handle(DeadlinePassed(5.0))
    assert (fail.stream, fail.failed.reason) == (2, "deadline")
    fail, _ = scheduler.handle(DeadlinePassed(11.0))
    assert fail.stream == 1
    scheduler.check_idle()


def test_a_sequence_the_engine_fails_ends_alone() -> None:
    scheduler = make(method="naive")
    arrive(scheduler, 1)
    arrive(scheduler, 2)
    step(scheduler)
    fail, emit, forget = done(scheduler, Verdict([], 0, failure="not finite"), one(4))
    assert (fail.stream, fail.failed.reason, fail.failed.message) == (1, "engine", "not finite")
    assert emit.stream == 2 and forget == Forget([1])


def test_an_engine_that_failed_fails_everyone_and_may_be_tried_again() -> None:
    scheduler = make(max_sequences=1)
    arrive(scheduler, 1)
    arrive(scheduler, 2)
    step(scheduler)
    fails = scheduler.handle(EngineFailed("gone"))[:-1]
    assert [(f.stream, f.failed.reason, f.failed.retryable) for f in fails] == [
        (1, "engine", True),
        (2, "engine", True),
    ]
    scheduler.check_idle()


# Pages -------------------------------------------------------------------------------------------------


def test_the_youngest_gives_up_its_pages_and_is_computed_again_with_its_text() -> None:
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


def test_a_draft_is_not_worth_anyones_pages() -> None:
    scheduler = make(pages=4, page_tokens=2, max_context=8)
    arrive(scheduler, 1, max_tokens=5)
    step(scheduler)
    done(scheduler, one(4))
    arrive(scheduler, 2, prompt=[1], max_tokens=5)
    step(scheduler)
    done(scheduler, one(5), one(2))
    scheduler.handle(draft(1, 5, [6, 7]))
    # One page is free: room for the text and one drafted token, and none for the second.
    work = step(scheduler)
    assert work[0] == ([5, 6], 4, [6], True) and len(work) == 2
    assert scheduler.preemptions == 0


def test_nobody_passes_one_who_waits_for_pages() -> None:
    scheduler = make(pages=8, page_tokens=2, max_context=16)
    arrive(scheduler, 1, max_tokens=9)
    step(scheduler)
    done(scheduler, one(4))
    arrive(scheduler, 2, prompt=[1] * 13, max_tokens=2)
    arrive(scheduler, 3, prompt=[1], max_tokens=2)
    assert len(step(scheduler)) == 1
    assert [sequence.stream for sequence in scheduler.waiting] == [2, 3]


def test_what_was_lost_with_the_pages_is_computed_again() -> None:
    scheduler = started()
    step(scheduler)
    scheduler.handle(PagesLost())
    assert scheduler.handle(StepDone([one(5)])) == []
    assert step(scheduler) == [([1, 2, 3, 4], 0, [], True)]


def test_a_lower_priority_number_goes_first() -> None:
    from msgspec.structs import replace

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


def test_a_method_that_is_switched_off_gets_no_drafts_in_requests_that_run_nor_in_those_that_come() -> None:
    scheduler = started()
    assert scheduler.handle(draft(1, 4, [5, 6])) == []
    assert scheduler.handle(SwitchOff("ngram")) == []
    # The draft that waited for its step is dropped, and one that comes late isn't taken.
    scheduler.handle(draft(1, 4, [5, 6]))
    assert step(scheduler) == [([4], 3, [], True)]
    assert not any(isinstance(item, AskDrafts) for item in done(scheduler, one(5)))
    arrive(scheduler, 2, [7, 8, 9], max_tokens=5)
    for first in (True, False):
        step(scheduler)
        told = done(scheduler, one(6), one(10 if first else 11))
        assert not any(isinstance(item, AskDrafts) for item in told)


def test_another_method_goes_on_when_one_is_switched_off() -> None:
    scheduler = started(methods=("naive", "ngram", "suffix"))
    scheduler.handle(SwitchOff("suffix"))
    step(scheduler)
    assert any(isinstance(item, AskDrafts) for item in done(scheduler, one(5)))


def test_a_replay_runs_like_any_request_and_is_in_no_count_of_them() -> None:
    scheduler = make(prefix_cache=True)
    arrive(scheduler, -1, [1, 2, 3, 4, 5], max_tokens=6, method="naive", strategy="target_match", temperature=1.0)
    for token in range(6, 12):
        assert step(scheduler)
        told = done(scheduler, one(token))
        assert told[0] == Emit(-1, told[0].tokens) and told[0].tokens.ids == [token]
    assert isinstance(told[1], Finish) and told[1].stream == -1
    scheduler.check_idle()
    counts = (scheduler.prompt_tokens, scheduler.generated_tokens, scheduler.ends, scheduler.tallies)
    assert counts == (0, 0, {}, {})
    sharing = scheduler.planner.sharing
    assert (sharing.asked_tokens, scheduler.pages.cached) == (0, 0)
    scheduler.handle(Drain())
    [refused] = arrive(scheduler, -2)
    assert isinstance(refused, Fail) and scheduler.ends == {}
