from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from driving import one_step, request

from services.api.drafter import Draft
from services.api.messages import Finished, Generate, Span, Tokens
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import Result, SequenceWork, Verdict, Work
from services.worker.scheduling.events import Arrived, Cancelled, Emit, Fail, Finish
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.remote.client import Answer
from services.worker.timeline import MOST_SPANS, Timelines


def timed(**sampling: Any) -> Generate:
    return msgspec.structs.replace(request(**sampling), timeline=True)


def arrived(*, timeline: bool = True) -> Timelines:
    """They have heard of a request that came at 100.0 as sequence 7."""
    timelines = Timelines()
    timelines.hear(Arrived(timed() if timeline else request(), 7, None, 100.0))
    return timelines


def stepped(
    timelines: Timelines, began: float, ended: float, tokens: int, verdict: Verdict | None = None, draft: int = 0
) -> None:
    """A step of the sequence, with `tokens` of its text and `draft` drafted ones."""
    item = SequenceWork(7, [1] * tokens, 0, [], verdict is not None, Draft([1] * draft))
    timelines.stepped(Work([item]), Result([verdict]), began, ended)


def emitted(timelines: Timelines) -> list[Span]:
    told = timelines.told(Emit(7, Tokens(request_id="r", attempt=0, seq=0, ids=[1])))
    return cast(Emit, told).tokens.spans


def facts(spans: list[Span]) -> list[tuple[Any, ...]]:
    return [(each.what, round(each.begin, 6), round(each.end, 6), each.tokens, each.step) for each in spans]


def test_a_request_waits_is_computed_and_verified() -> None:
    timelines = arrived()
    stepped(timelines, 100.5, 100.6, 5)
    stepped(timelines, 100.6, 100.7, 3, Verdict([9], 0))
    assert facts(emitted(timelines)) == [
        ("queue", 0.0, 0.5, 0, 0), ("prefill", 0.5, 0.6, 5, 0), ("prefill", 0.6, 0.7, 3, 0),
    ]  # fmt: skip
    stepped(timelines, 100.7, 100.8, 1, Verdict([1, 1, 4], 2), draft=2)
    # What was preempted is computed once more, and verified behind that.
    stepped(timelines, 100.9, 101.0, 9, Verdict([4], 0))
    stepped(timelines, 101.0, 101.1, 1, Verdict([4], 0))
    assert facts(emitted(timelines)) == [
        ("verify", 0.7, 0.8, 3, 1), ("prefill", 0.9, 1.0, 9, 0), ("verify", 1.0, 1.1, 1, 2),
    ]  # fmt: skip
    assert emitted(timelines) == []


def answer(*, ahead: bool = False, answered: bool = True, worked: float = 0.0) -> Answer:
    return Answer([], {}, ahead, answered, 0.0, 101.0, worked)


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        # Waited for: until it was received.
        (answer(), 1.4),
        # Asked ahead: as long as the proposer says, and not beyond the moment it was found.
        (answer(ahead=True, worked=0.1), 1.1),
        (answer(ahead=True, worked=9.0), 1.4),
        (answer(ahead=True, worked=-9.0), 1.0),
        # Given up.
        (answer(ahead=True, answered=False), 1.4),
    ],
)
def test_drafting_has_a_span_with_the_tokens_that_came(answer: Answer, end: float) -> None:
    timelines = arrived()
    timelines.proposed(answer, {7: 2, 8: 5}, 101.4)
    assert facts(emitted(timelines)) == [("propose", 1.0, end, 2, 0)]


def test_the_spans_of_a_long_prompt_are_bounded() -> None:
    timelines = arrived()
    for chunk in range(1000):
        stepped(timelines, 101.0 + chunk, 102.0 + chunk, 2)
    spans = emitted(timelines)
    assert len(spans) == MOST_SPANS
    assert sum(each.tokens for each in spans) == 2000
    assert (spans[-1].what, spans[-1].end) == ("prefill", 1001.0)


def test_nothing_is_kept_of_requests_that_did_not_ask_or_are_gone() -> None:
    assert not arrived(timeline=False).records
    timelines = arrived()
    timelines.hear(Cancelled(7))
    stepped(timelines, 101.0, 102.0, 1, Verdict([1], 0))
    assert not timelines.records and emitted(timelines) == []
    for end in (Finish(7, Finished(request_id="r", attempt=0, reason="stop", prompt_tokens=1, cached_tokens=0,
                                   completion_tokens=0)), Fail(7, cast(Any, None))):  # fmt: skip
        timelines = arrived()
        stepped(timelines, 101.0, 102.0, 1, Verdict([1], 0))
        told = timelines.told(end)
        assert not timelines.records
        if isinstance(told, Finish):
            assert [span.what for span in told.finished.spans] == ["queue", "prefill"]


def test_steps_of_a_scheduler_give_a_prefill_and_then_numbered_verify_spans() -> None:
    runner, timelines, moment = MockRunner(Profile(acceptance=1.0)), Timelines(), 100.0
    scheduler = Scheduler(limits_of(runner.facts, method="ngram", num_speculative_tokens=4))
    for sequence_id, generate in ((1, timed(max_tokens=20)), (2, request(max_tokens=20))):
        event = Arrived(generate, sequence_id, at=moment)
        scheduler.handle(event)
        timelines.hear(event)
    spans: list[Span] = []
    while scheduler.has_work:
        work, result, out = one_step(scheduler, runner, lambda sequence, budget: [sequence.token_ids[-1] + 1])
        timelines.stepped(work, result, moment, moment + 1.0)
        moment += 1.0
        for item in map(timelines.told, (each for each in out if isinstance(each, Emit | Finish))):
            new = item.tokens.spans if isinstance(item, Emit) else cast(Finish, item).finished.spans
            assert item.sequence_id == 1 or not new
            spans += new
    assert [span.what for span in spans] == ["queue", "prefill", *["verify"] * (len(spans) - 2)]
    assert [span.step for span in spans[2:]] == list(range(1, len(spans) - 1))
    # The first token comes out of the prompt.
    assert sum(span.tokens for span in spans[2:]) == 19 and len(spans) < 17
    assert not timelines.records
