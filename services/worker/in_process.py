"""The worker's engine without a thread, sockets and a proposer: prompts run to their ends in batches. Trainings answer
prompts with it, and `specmesh.engine` gives it to Python programs."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from services.api.messages import Finished, Generate, Speculation
from services.api.methods import METHODS, NAIVE
from services.api.sampling import Sampling
from services.worker.engine import Engine
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.runner import Runner
from services.worker.running.torch_runner import TorchRunner
from services.worker.scheduling.events import Answer, Arrived, Emit, Fail
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.controller import Controller
from services.worker.speculation.guard import GuardedController
from services.worker.speculation.heads.drafters import HeadDrafters
from services.worker.speculation.remote.proposers import Proposers

MAX_SEQUENCES = 32


@dataclass(frozen=True, slots=True)
class EndedAnswer:
    """`ids` is the answer to the prompt of this number."""

    number: int
    ids: list[int]
    finished: Finished


def runner_with_head(folder: Path, method: str, head: Path, wanted: Wanted) -> tuple[Runner, Any]:
    """A runner of the model with this head for its own drafts, and its drafter."""
    model = load_torch_model(folder, wanted, head=(method, head))
    drafter: Any = METHODS[method].load()(method, None, model)
    return TorchRunner(model, HeadDrafters({method: drafter})), drafter


class InProcessEngine:
    def __init__(self, runner: Runner, method: str = NAIVE) -> None:
        """`method` is `naive`, or that of a drafter which the runner has."""
        limits = limits_of(
            runner.facts, max_sequences=MAX_SEQUENCES, max_waiting=2 * MAX_SEQUENCES, method=method
        )
        self._scheduler = Scheduler(limits)
        self._drafts = GuardedController(Controller(limits, Proposers(lambda: _never("no proposer"))))
        self._engine = Engine(
            self._scheduler, runner, self._drafts, deliver=self._deliver, failed=_never, now=time.monotonic
        )
        self._delivered: list[Answer] = []
        self._sequence_ids = itertools.count(1)

    def run(self, prompts: Mapping[int, Sequence[int]], sampling: Sampling) -> Iterator[EndedAnswer]:
        """Answers, as they end. A prompt's seed is that of `sampling` plus its number. Raises ValueError for a prompt
        that the engine refuses or that fails."""
        # By sequence: the number of its prompt, and its answer.
        running: dict[int, tuple[int, list[int]]] = {}
        todo = iter(prompts)
        while True:
            while len(running) < 2 * MAX_SEQUENCES and (number := next(todo, None)) is not None:
                running[self._arrive(number, prompts[number], sampling)] = number, []
            if not running:
                return
            if self._scheduler.has_work:
                self._engine.step()
            # Nothing else would tell that drafts are missing.
            if self._drafts.failed:
                raise RuntimeError("drafting failed")
            delivered, self._delivered = self._delivered, []
            for item in delivered:
                number, ids = running[item.sequence_id]
                if isinstance(item, Fail):
                    raise ValueError(f"prompt {number} can't be answered: {item.failed.message}")
                if isinstance(item, Emit):
                    ids += item.tokens.ids
                else:
                    del running[item.sequence_id]
                    yield EndedAnswer(number, ids, item.finished)

    def _arrive(self, number: int, prompt: Sequence[int], sampling: Sampling) -> int:
        """Returns its sequence_id."""
        sequence_id = next(self._sequence_ids)
        request = Generate(
            request_id=str(number),
            attempt=1,
            token_ids=list(prompt),
            prompt_tokens=len(prompt),
            sampling=dataclasses.replace(sampling, seed=sampling.seed + number),
            speculation=Speculation(),
        )
        # Not empty if the request is refused, or is to have no tokens.
        out = self._scheduler.handle(Arrived(request, sequence_id))
        self._delivered += [item for item in out if isinstance(item, Answer)]
        return sequence_id

    def _deliver(self, answers: list[Answer]) -> None:
        self._delivered += answers
        self._engine.answers.taken()


def _never(text: str) -> NoReturn:
    raise AssertionError(f"there is neither a thread nor a proposer: {text}")
