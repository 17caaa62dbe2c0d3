from __future__ import annotations

import itertools
from typing import Any, cast

import msgspec
import pytest
from driving import limits_of
from mesh_around import request
from test_engine import World

from services.api.drafts import DraftItem
from services.api.messages import Finished, Generate, Span, Tokens
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.runner import StepWork, Verdict
from services.worker.scheduling.events import (
    Arrived,
    Cancelled,
    DraftAsk,
    DraftsReady,
    Emit,
    Fail,
    Finish,
    RunStep,
    StepWanted,
)
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence
from services.worker.timeline import MOST_SPANS, Timelines


def timed(**sampling: Any) -> Generate:
    return msgspec.structs.replace(request(**sampling), timeline=True)


def sequence_of(stream: int = 7, *, timeline: bool = True) -> tuple[Timelines, Sequence]:
    """A request that came at 100.0 and waits, and the timelines that heard of it."""
    scheduler = Scheduler(limits_of(MockRunner(Profile()), method="naive"))
    arrived = Arrived(timed() if timeline else request(), stream, None, 100.0)
    timelines = Timelines()
    timelines.hear(arrived)
    scheduler.handle(arrived)
    scheduler.handle(StepWanted())
    found = scheduler.sequence_of(stream)
    assert found is not None
    return timelines, found


def work(sequence: Sequence, tokens: int, draft: int = 0, *, verify: bool = True) -> StepWork:
    return StepWork(sequence, [1] * tokens, 0, [1] * draft, verify)


def emitted(timelines: Timelines, stream: int = 7) -> list[Span]:
    answer = timelines.told(Emit(stream, Tokens(request_id="r", attempt=0, seq=0, ids=[1])))
    return cast(Emit, answer).tokens.spans


def facts(spans: list[Span]) -> list[tuple[Any, ...]]:
    return [(each.what, round(each.begin, 6), round(each.end, 6), each.tokens, each.step) for each in spans]


def test_a_request_waits_is_computed_and_verified() -> None:
    timelines, sequence = sequence_of()
    timelines.stepped([work(sequence, 5, verify=False)], [None], 100.5, 100.6)
    timelines.stepped([work(sequence, 3)], [Verdict([9], 0)], 100.6, 100.7)
    assert facts(emitted(timelines)) == [
        ("queue", 0.0, 0.5, 0, 0), ("prefill", 0.5, 0.6, 5, 0), ("prefill", 0.6, 0.7, 3, 0),
    ]  # fmt: skip
    sequence.verifying = True
    timelines.stepped([work(sequence, 3, draft=2)], [Verdict([1, 1, 4], 2)], 100.7, 100.8)
    # What was preempted is computed once more.
    timelines.stepped([work(sequence, 9)], [Verdict([4], 0)], 100.9, 101.0)
    assert facts(emitted(timelines)) == [("verify", 0.7, 0.8, 3, 1), ("prefill", 0.9, 1.0, 9, 0)]
    assert emitted(timelines) == []


@pytest.mark.parametrize(
    ("ready", "end"),
    [
        # Waited for: until it was heard.
        (DraftsReady([], sent_at=101.0), 1.4),
        # Asked ahead: as long as the proposer says, and not beyond the moment it was found.
        (DraftsReady([], ahead=True, sent_at=101.0, worked=0.1), 1.1),
        (DraftsReady([], ahead=True, sent_at=101.0, worked=9.0), 1.4),
        (DraftsReady([], ahead=True, sent_at=101.0, worked=-9.0), 1.0),
        # Given up.
        (DraftsReady([], ahead=True, answered=False, sent_at=101.0), 1.4),
    ],
)
def test_guessing_has_a_span_with_the_tokens_that_came(ready: DraftsReady, end: float) -> None:
    timelines, sequence = sequence_of()
    draft = DraftItem(sequence_id=sequence.id, committed=9, tokens=[4, 5], source="x")
    timelines.asked([DraftAsk(sequence, 4)])
    timelines.proposed(msgspec.structs.replace(ready, drafts=[draft]), 101.4)
    assert facts(emitted(timelines)) == [("propose", 1.0, end, 2, 0)]
    # It was answered: the next answer is about another question.
    timelines.proposed(ready, 101.5)
    assert emitted(timelines) == []


def test_a_long_prompt_takes_no_more_than_so_many_spans() -> None:
    timelines, sequence = sequence_of()
    for chunk in range(1000):
        timelines.stepped([work(sequence, 2, verify=False)], [None], 101.0 + chunk, 102.0 + chunk)
    spans = emitted(timelines)
    assert len(spans) == MOST_SPANS
    assert sum(each.tokens for each in spans) == 2000
    assert (spans[-1].what, spans[-1].end) == ("prefill", 1001.0)


def test_nothing_is_kept_of_those_who_did_not_ask_or_are_gone() -> None:
    assert not sequence_of(timeline=False)[0].records
    timelines, sequence = sequence_of()
    timelines.hear(Cancelled(7))
    timelines.stepped([work(sequence, 1)], [Verdict([1], 0)], 101.0, 102.0)
    assert not timelines.records and emitted(timelines) == []
    for end in (Finish(7, Finished(request_id="r", attempt=0, reason="stop", prompt_tokens=1, cached_tokens=0,
                                   completion_tokens=0)), Fail(7, cast(Any, None))):  # fmt: skip
        timelines, sequence = sequence_of()
        timelines.stepped([work(sequence, 1)], [Verdict([1], 0)], 101.0, 102.0)
        answer = timelines.told(end)
        assert not timelines.records
        if isinstance(answer, Finish):
            assert [span.what for span in answer.finished.spans] == ["queue", "prefill"]


def test_the_step_loop_tells_those_who_asked_and_only_those() -> None:
    world = World(MockRunner(Profile(step_ms=0.0, acceptance=1.0)), method="ngram", num_speculative_tokens=4)
    world.loop.post(Arrived(timed(max_tokens=20), 1))
    world.loop.post(Arrived(request(max_tokens=20), 2))
    world.until(lambda: len(world.ends()) == 2)
    emits = [item for delivery in world.deliveries for item in delivery if isinstance(item, Emit)]
    assert all(not item.tokens.spans for item in emits if item.stream == 2)
    spans = [span for item in emits if item.stream == 1 for span in item.tokens.spans]
    assert [span.what for span in spans][:2] == ["queue", "prefill"]
    verified = [span for span in spans if span.what == "verify"]
    assert [span.step for span in verified] == list(range(1, len(verified) + 1))
    # The first token comes out of the prompt.
    assert sum(span.tokens for span in verified) == 19
    assert all(before.end <= after.begin for before, after in itertools.pairwise(verified))
    world.loop.stop()


def test_a_run_step_is_what_the_scheduler_plans() -> None:
    """What `stepped` reads of a step is what a scheduler puts there: a first step verifies, and isn't one of drafts."""
    scheduler = Scheduler(limits_of(MockRunner(Profile()), method="naive"))
    scheduler.handle(Arrived(request(), 7))
    (step,) = [item for item in scheduler.handle(StepWanted()) if isinstance(item, RunStep)]
    assert [item.verify for item in step.work] == [True]
    assert not step.work[0].sequence.verifying
