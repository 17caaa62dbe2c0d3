"""The acceptance of a head on prompts that it wasn't trained on, through the worker's own engine: greedy answers, every
draft verified."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from services.api.messages import Finished, Generate, Sampling, Speculation
from services.api.methods import METHODS
from services.worker.running.torch_model import Wanted, load_torch_model
from services.worker.running.torch_runner import TorchRunner
from services.worker.scheduling.events import Arrived, Finish, StepDone
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.controller import Controller
from services.worker.speculation.local.drafters import LocalDrafters
from services.worker.speculation.remote.client import ProposerClient


@dataclass(frozen=True, slots=True)
class Measured:
    """`tokens_per_step` with drafts of this head alone, and the share of drafted tokens accepted by position."""

    prompts: int
    tokens: int
    tokens_per_step: float
    accepted: list[float]


def measure(
    folder: Path, method: str, head: Path, prompts: Sequence[Sequence[int]], wanted: Wanted, max_tokens: int
) -> Measured:
    model = load_torch_model(folder, wanted, head=(method, head))
    drafter: Any = METHODS[method].load()(None, model)
    runner = TorchRunner(model, LocalDrafters({method: drafter}))
    facts = runner.facts
    limits = Limits(
        vocab_size=facts.vocab_size, max_context=facts.max_context, eos_token_ids=tuple(facts.eos_token_ids),
        page_tokens=facts.page_tokens, pages=facts.pages, max_sequences=8, max_waiting=1 << 20, method=method,
    )  # fmt: skip
    scheduler = Scheduler(limits)
    controller = Controller(
        limits, ProposerClient(_no_proposer, worker="", epoch=1, deadline=1.0, now=time.monotonic)
    )
    for number, prompt in enumerate(prompts):
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0)
        scheduler.handle(Arrived(Generate(
            request_id=str(number), attempt=1, token_ids=list(prompt), prompt_tokens=len(prompt), sampling=sampling,
            speculation=Speculation(),
        ), number))  # fmt: skip
    ends: list[Finished] = []
    while scheduler.has_work:
        drafts, budgets = controller.draft(scheduler.schedule())
        work = scheduler.place(drafts, budgets)
        runner.launch(work)
        result = runner.finish()
        out = scheduler.handle(StepDone(result))
        controller.commit(work, result)
        for item in out:
            if isinstance(item, Finish):
                ends.append(item.finished)
            sequence = getattr(item, "sequence", None)
            if sequence is not None:
                controller.forget(sequence, False)
    return _counted(ends)


def _counted(ends: list[Finished]) -> Measured:
    stats = [end.speculation for end in ends]
    steps = sum(each.steps for each in stats)
    drafted, accepted = (
        [sum(column) for column in zip_longest(*rows, fillvalue=0)]
        for rows in ([each.drafted_per_position for each in stats], [each.accepted_per_position for each in stats])
    )
    shares = [kept / max(1, count) for kept, count in zip_longest(accepted, drafted, fillvalue=0)]
    tokens = sum(end.completion_tokens for end in ends)
    return Measured(len(ends), tokens, (steps + sum(each.accepted for each in stats)) / max(1, steps), shares)


def _no_proposer(endpoint: str) -> NoReturn:
    raise AssertionError("heads ask no proposer")
