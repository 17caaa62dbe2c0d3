"""Runs requests to their ends through a scheduler and a runner, without threads or sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.api.drafter import Draft
from services.api.messages import Finished, Generate, Speculation
from services.api.prompt_logprobs import PromptLogprob, unpack
from services.api.sampling import Sampling
from services.worker.running.runner import Runner
from services.worker.running.work import NewSequence, Result, Verdict, Work
from services.worker.scheduling.events import Arrived, Emit, Fail, Finish, Output, StepDone
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence


def request(
    prompt: list[int] | None = None,
    *,
    name: str = "r",
    attempt: int = 1,
    so_far: list[int] | None = None,
    method: str = "",
    drafts: int = -1,
    strategy: str = "",
    **sampling: Any,
) -> Generate:
    prompt = prompt or [100, 101, 102, 103]
    return Generate(
        request_id=name,
        attempt=attempt,
        token_ids=[*prompt, *(so_far or [])],
        prompt_tokens=len(prompt),
        sampling=Sampling(**sampling),
        speculation=Speculation(method=method, num_speculative_tokens=drafts, verify_strategy=strategy),
    )


# Drafts behind a sequence's text: at most as many tokens as the second argument, or a Draft.
Guess = Callable[[Sequence, int], list[int] | Draft]


@dataclass
class Outcome:
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    # Of the prompt's tokens behind the first.
    prompt: list[PromptLogprob] = field(default_factory=list)
    end: Any = None

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end


def drafts_of(sequences: list[Sequence], guess: Guess | None) -> dict[int, Draft]:
    found: dict[int, Draft] = {}
    for sequence in sequences if guess is not None else ():
        assert guess is not None
        if sequence.wants_draft:
            drafted = guess(sequence, sequence.longest_draft)
            found[sequence.sequence_id] = drafted if isinstance(drafted, Draft) else Draft(drafted, "t")
    return found


def placed(scheduler: Scheduler, drafts: Mapping[int, Draft] | None = None) -> tuple[Work, list[int]]:
    """The next step with these drafts, and whose sequences its items are."""
    plan = scheduler.schedule()
    return scheduler.place(drafts or {}), [item.sequence.sequence_id for item in plan.items]


def done(scheduler: Scheduler, *verdicts: Verdict | None) -> list[Output]:
    return scheduler.handle(StepDone(Result(list(verdicts))))


def one(token: int) -> Verdict:
    """Nothing is accepted."""
    return Verdict([token], 0)


def token_for_each(scheduler: Scheduler, token: int = 30) -> tuple[Work, list[int], list[Output]]:
    """A step in which every text gets this token: its work, its sequences, and what is passed on."""
    work, sequence_ids = placed(scheduler)
    return work, sequence_ids, done(scheduler, *(one(token) if item.verify else None for item in work.items))


def one_step(scheduler: Scheduler, runner: Runner, guess: Guess | None = None) -> tuple[Work, Result, list[Output]]:
    """What was run, what came of it, and what is passed on."""
    plan = scheduler.schedule()
    work = scheduler.place(drafts_of([item.sequence for item in plan.items], guess))
    runner.launch(work)
    result = runner.finish()
    return work, result, scheduler.handle(StepDone(result))


def run_all(
    runner: Runner, requests: list[Generate], guess: Guess | None = None, **limits: Any
) -> tuple[list[Outcome], Scheduler]:
    """All arrive at once; `guess` drafts behind each text."""
    scheduler = Scheduler(limits_of(runner.facts, **{"method": "ngram", **limits}))
    outcomes = [Outcome() for _ in requests]

    def hear(out: list[Output]) -> None:
        for item in out:
            if isinstance(item, Emit):
                outcomes[item.sequence_id].ids += item.tokens.ids
                outcomes[item.sequence_id].logprobs += [value.logprob for value in item.tokens.logprobs or []]
                if (told := item.tokens.prompt_logprobs) is not None:
                    assert told.begin == 1 + len(outcomes[item.sequence_id].prompt) and not item.tokens.ids
                    outcomes[item.sequence_id].prompt += unpack(told)
            elif isinstance(item, Finish):
                outcomes[item.sequence_id].end = item.finished
            elif isinstance(item, Fail):
                outcomes[item.sequence_id].end = item.failed

    for sequence_id, generate in enumerate(requests):
        hear(scheduler.handle(Arrived(generate, sequence_id)))
    while scheduler.has_work:
        hear(one_step(scheduler, runner, guess)[2])
    scheduler.check_idle()
    return outcomes, scheduler


def repeat_what_followed(sequence: Sequence, budget: int) -> list[int]:
    """An n-gram guess: what came after the last two tokens when they came before."""
    text = sequence.token_ids
    for start in range(len(text) - 3, -1, -1):
        if text[start : start + 2] == text[-2:]:
            return text[start + 2 : start + 2 + budget]
    return []


def new_sequence(generate: Generate, verification: Any, sequence_id: int = 1) -> NewSequence:
    """As a runner hears of this request first."""
    return NewSequence(
        sequence_id, generate.sampling, verification, generate.prompt_tokens, generate.token_ids[:]
    )
