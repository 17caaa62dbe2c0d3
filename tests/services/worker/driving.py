"""Runs requests to their ends through a scheduler and a runner, without threads or sockets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from services.api.drafts import DraftItem
from services.api.messages import Finished, Generate
from services.worker.running.runner import Runner
from services.worker.running.sampling import stop_ids
from services.worker.scheduling.events import (
    Arrived,
    AskDrafts,
    CopyPage,
    DraftAsk,
    DraftsReady,
    Emit,
    Fail,
    Finish,
    RunStep,
    StepDone,
    StepWanted,
    TimeToSpare,
)
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence, Tally
from services.worker.verify.policy import Verification

Drafter = Callable[[DraftAsk], list[int]]


@dataclass
class Outcome:
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    end: Any = None

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end


def sequence_of(generate: Generate, verification: Verification, facts: Any) -> Sequence:
    """One that no scheduler knows, for who only looks at it."""
    return Sequence(
        id=1,
        stream=1,
        generate=generate,
        deadline=None,
        due=0.0,
        max_length=facts.max_context,
        stop_ids=stop_ids(generate.sampling, facts.eos_token_ids),
        method="ngram",
        verification=verification,
        draft_length=8,
        tally=Tally(),
    )


def limits_of(runner: Runner, **more: Any) -> Limits:
    facts = runner.facts
    fixed = ("vocab_size", "max_context", "eos_token_ids", "page_tokens", "pages", "branch_pages")
    return Limits(**{"method": "ngram", **{name: getattr(facts, name) for name in fixed}, **more})


def run_all(
    runner: Runner, requests: list[Generate], drafter: Drafter | None = None, **limits: Any
) -> tuple[list[Outcome], Scheduler]:
    """All arrive at once; `drafter` guesses behind each text."""
    scheduler = Scheduler(limits_of(runner, **limits))
    outcomes = [Outcome() for _ in requests]

    def hear(instructions: list[Any]) -> None:
        for item in instructions:
            if isinstance(item, Emit):
                outcomes[item.stream].ids += item.tokens.ids
                outcomes[item.stream].logprobs += [value.logprob for value in item.tokens.logprobs or []]
            elif isinstance(item, Finish):
                outcomes[item.stream].end = item.finished
            elif isinstance(item, Fail):
                outcomes[item.stream].end = item.failed
            elif isinstance(item, AskDrafts) and drafter is not None:
                hear(scheduler.handle(DraftsReady([_draft(ask, drafter) for ask in item.asks])))
            elif isinstance(item, CopyPage):
                runner.copy_page(item.source, item.target)
            elif isinstance(item, RunStep):
                hear(scheduler.handle(StepDone(runner.step(item.work, spare))))

    def spare(elsewhere: bool) -> None:
        hear(scheduler.handle(TimeToSpare()))

    for stream, generate in enumerate(requests):
        hear(scheduler.handle(Arrived(generate, stream)))
    while scheduler.has_work:
        hear(scheduler.handle(StepWanted()))
    scheduler.check_idle()
    return outcomes, scheduler


def _draft(ask: DraftAsk, drafter: Drafter) -> DraftItem:
    return DraftItem(
        sequence_id=ask.sequence.id, committed=ask.sequence.length, tokens=drafter(ask)[: ask.budget], source="t"
    )


def repeat_what_followed(ask: DraftAsk) -> list[int]:
    """An n-gram guess: what came after the last two tokens when they came before."""
    text = ask.sequence.token_ids
    for start in range(len(text) - 3, -1, -1):
        if text[start : start + 2] == text[-2:]:
            return text[start + 2 : start + 2 + ask.budget]
    return []
