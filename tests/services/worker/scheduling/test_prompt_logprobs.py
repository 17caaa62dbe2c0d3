"""Requests that want the log-probabilities of their prompt. Pages have 4 tokens."""

from __future__ import annotations

import pytest
from driving import Outcome, placed, request, run_all
from msgspec.structs import replace
from paged_fake import EOS, VOCABULARY, PagedFake, alone, scores_of

from services.api.prompt_logprobs import PromptLogprob, unpack
from services.worker.scheduling import limits
from services.worker.scheduling.events import Arrived, Emit, StepDone
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler

PROMPT = [1 + place * place % 9 for place in range(30)]


def scores(outcome: Outcome) -> list[float]:
    return [each.logprob for each in outcome.prompt]


@pytest.mark.parametrize("rows", [2, 7, 64])
def test_each_token_behind_the_first_has_one_whatever_the_chunks(rows: int) -> None:
    wanted = [request(PROMPT, max_tokens=5, prompt_logprobs=0), request(PROMPT[:9], max_tokens=5)]
    [scored, plain], _ = run_all(PagedFake(40), wanted, max_step_tokens=rows)
    assert scores(scored) == scores_of(PROMPT) and scored.ids == alone(PROMPT, 5, 64)[0]
    assert not plain.prompt and plain.ids == alone(PROMPT[:9], 5, 64)[0]


def test_a_prompt_alone_is_scored_and_nothing_is_generated() -> None:
    [outcome], scheduler = run_all(PagedFake(40), [request(PROMPT, max_tokens=0, prompt_logprobs=0)])
    assert scores(outcome) == scores_of(PROMPT)
    assert (outcome.ids, outcome.finished.reason, outcome.finished.completion_tokens) == ([], "length", 0)
    assert scheduler.generated_tokens == 0


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    [outcome], _ = run_all(PagedFake(40), [request([5], max_tokens=0, prompt_logprobs=0)])
    assert (outcome.prompt, outcome.ids, outcome.finished.reason) == ([], [], "length")


def test_another_attempt_scores_the_prompt_before_it_goes_on_behind_the_delivered_tokens() -> None:
    text = alone(PROMPT, 12, 64)[0]
    wanted = request(PROMPT, so_far=text[:5], attempt=2, max_tokens=12, prompt_logprobs=0)
    [outcome], _ = run_all(PagedFake(40), [wanted], max_step_tokens=16)
    assert scores(outcome) == scores_of(PROMPT) and outcome.ids == text[5:]


def test_a_scored_prompt_finds_nothing_in_the_cache_and_others_find_what_it_computed() -> None:
    runner = PagedFake(40)
    wanted = [request(PROMPT, name=name, max_tokens=2, prompt_logprobs=top) for name, top in (("a", -1), ("b", 0))]
    outcomes, _ = run_all(runner, [*wanted, wanted[0]], max_sequences=1)
    assert [outcome.finished.cached_tokens for outcome in outcomes] == [0, 0, 28]
    assert [scores(outcome) for outcome in outcomes] == [[], scores_of(PROMPT), []]


def test_after_a_preemption_what_was_scored_is_found_in_the_cache_and_not_sent_again() -> None:
    scheduler = Scheduler(Limits(VOCABULARY, 64, (EOS,), page_tokens=4, pages=40, max_step_tokens=11))
    runner = PagedFake(40)
    scheduler.handle(Arrived(request(PROMPT, max_tokens=0, prompt_logprobs=0), 1))
    told: list[PromptLogprob] = []
    seen: list[tuple[int, int, int]] = []
    while scheduler.has_work:
        work, _ = placed(scheduler)
        seen += [(item.start, len(item.tokens), len(item.scored)) for item in work.items]
        runner.launch(work)
        for each in scheduler.handle(StepDone(runner.finish())):
            if isinstance(each, Emit) and each.tokens.prompt_logprobs is not None:
                told += unpack(each.tokens.prompt_logprobs)
        if len(seen) == 2:
            scheduler.planner.preempt(scheduler.running[0])
    assert [each.logprob for each in told] == scores_of(PROMPT)
    # The third step begins behind the last full page; two of its rows were scored before.
    assert seen == [(0, 11, 11), (11, 11, 11), (20, 10, 7)]


def test_rows_with_logits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROMPT_LOGITS_BYTES", 6 * VOCABULARY * 4)
    scheduler = Scheduler(Limits(VOCABULARY, 64, (EOS,), page_tokens=4, pages=40, max_step_tokens=64))
    for sequence_id in range(2):
        scheduler.handle(Arrived(request(PROMPT, max_tokens=1, prompt_logprobs=0), sequence_id))
    scheduler.handle(Arrived(replace(request(PROMPT, max_tokens=1), cache_salt="other"), 2))
    work, _ = placed(scheduler)
    assert [(len(item.tokens), len(item.scored)) for item in work.items] == [(7, 7), (1, 1), (30, 0)]
