"""Requests for the embedding of their prompt. Pages have 4 tokens."""

from __future__ import annotations

from typing import Any

import pytest
from driving import Outcome, placed, request, run_all
from msgspec.structs import replace
from paged_fake import EOS, VOCABULARY, PagedFake, alone, embedding_of

from services.api.messages import Finished, Generate
from services.api.pooling import LAST, MEAN, POOLINGS
from services.worker.scheduling import limits
from services.worker.scheduling.events import Arrived, Finish, StepDone
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler

PROMPT = [1 + place * place % 9 for place in range(30)]


def embed(prompt: list[int], pooling: str, **more: Any) -> Generate:
    return replace(request(prompt, **({"max_tokens": 0} | more)), pooling=pooling)


@pytest.mark.parametrize("rows", [2, 7, 64])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_each_pooled_row_comes_once_and_in_order_whatever_the_chunks(pooling: str, rows: int) -> None:
    wanted = [embed(PROMPT, pooling), request(PROMPT[:9], max_tokens=5)]
    [embedded, plain], scheduler = run_all(PagedFake(40), wanted, max_step_tokens=rows)
    assert embedded.finished.embedding == embedding_of(PROMPT, pooling)
    assert (embedded.ids, embedded.finished.reason, embedded.finished.completion_tokens) == ([], "length", 0)
    assert plain.ids == alone(PROMPT[:9], 5, 64)[0] and not plain.finished.embedding
    assert scheduler.generated_tokens == 5


def test_the_last_row_needs_no_more_than_the_cache_lacks_and_the_mean_needs_all_rows() -> None:
    runner = PagedFake(40)
    wanted = [embed(PROMPT, pooling) for pooling in (LAST, LAST, MEAN, LAST)]
    outcomes, _ = run_all(runner, wanted, max_sequences=1)
    assert [each.finished.cached_tokens for each in outcomes] == [0, 28, 0, 28]
    assert [each.finished.embedding for each in outcomes] == [
        embedding_of(PROMPT, pooling) for pooling in (LAST, LAST, MEAN, LAST)
    ]


def test_after_a_preemption_no_row_is_pooled_twice() -> None:
    scheduler = Scheduler(Limits(VOCABULARY, 64, (EOS,), page_tokens=4, pages=40, max_step_tokens=11))
    runner = PagedFake(40)
    scheduler.handle(Arrived(embed(PROMPT, MEAN), 1))
    seen: list[tuple[int, int, int]] = []
    ends: list[Finished] = []
    while scheduler.has_work:
        work, _ = placed(scheduler)
        seen += [(item.start, len(item.tokens), item.pooled) for item in work.items]
        runner.launch(work)
        ends += [each.finished for each in scheduler.handle(StepDone(runner.finish())) if isinstance(each, Finish)]
        if len(seen) == 2:
            scheduler.planner.preempt(scheduler.running[0])
    # The third step begins behind the last full page; two of its rows were pooled before.
    assert seen == [(0, 11, 11), (11, 11, 11), (20, 10, 8)]
    assert [each.embedding for each in ends] == [embedding_of(PROMPT, MEAN)]
    scheduler.check_idle()


def test_pooled_rows_have_no_logits_and_so_no_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROMPT_LOGITS_BYTES", 6 * VOCABULARY * 4)
    scheduler = Scheduler(Limits(VOCABULARY, 64, (EOS,), page_tokens=4, pages=40, max_step_tokens=64))
    for sequence_id, pooling in enumerate((MEAN, LAST, MEAN)):
        scheduler.handle(Arrived(replace(embed(PROMPT, pooling), cache_salt=str(sequence_id)), sequence_id))
    work, _ = placed(scheduler)
    rows = [(len(item.tokens), item.pooled, item.chooses) for item in work.items]
    assert rows == [(30, 30, False), (30, 1, False), (4, 4, False)]


def test_a_prompt_may_fill_the_context_and_no_more() -> None:
    def ended(length: int) -> Outcome:
        return run_all(PagedFake(40), [embed([3] * length, MEAN)])[0][0]

    assert ended(64).finished.embedding == embedding_of([3] * 64, MEAN)
    assert ended(65).end.reason == "too_long"


@pytest.mark.parametrize(
    "generate",
    [
        embed(PROMPT, "cls"),
        embed(PROMPT, MEAN, max_tokens=1),
        embed(PROMPT, LAST, prompt_logprobs=0),
        embed(PROMPT, LAST, so_far=[3]),
    ],
)
def test_what_isnt_of_a_prompt_alone_is_refused(generate: Generate) -> None:
    [outcome], _ = run_all(PagedFake(40), [generate])
    assert outcome.end.reason == "invalid"


def test_it_has_no_drafts_whatever_it_asks_for() -> None:
    scheduler = Scheduler(Limits(VOCABULARY, 64, (EOS,), page_tokens=4, pages=40, method="ngram"))
    scheduler.handle(Arrived(embed(PROMPT, LAST, method="ngram", drafts=4), 1))
    [item] = scheduler.schedule().items
    assert (item.sequence.method, item.sequence.draft_length, item.drafts) == ("naive", 0, False)
