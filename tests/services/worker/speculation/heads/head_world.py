"""A worker's engine, step by step, around a tiny random model and one of its heads; and what a head's reference reads
of the model's. For the tests of drafters with a network of their own."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import Outcome

sys.path.insert(0, str(Path(__file__).parents[4] / "models" / "heads"))

import reference
from reference import HIDDEN, VOCABULARY, State

from models.batch import Stretch, make_batch
from models.config import read_network
from models.executor import Options
from models.plain import PlainExecutor
from models.weights import Weights
from services.api.drafter import Draft, DraftRequest
from services.api.messages import Generate
from services.api.methods import METHODS
from services.worker.engine import Engine
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel
from services.worker.running.torch_runner import TorchRunner
from services.worker.scheduling.events import Answer, Arrived, Emit, Fail, Finish
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.controller import Controller
from services.worker.speculation.guard import GuardedController
from services.worker.speculation.heads.drafters import HeadDrafters
from services.worker.speculation.heads.head_drafter import HeadDrafter
from services.worker.speculation.remote.proposers import Proposers

LAYERS = 3


class Kept:
    """Keeps the drafts of a drafter with the texts they follow."""

    def __init__(self, drafter: HeadDrafter) -> None:
        self.drafter = drafter
        self.drafts: list[tuple[list[int], Draft]] = []
        self.commit, self.forget = drafter.commit, drafter.forget

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        found = self.drafter.draft(requests)
        self.drafts += [(list(each.text.tokens), draft) for each, draft in zip(requests, found, strict=True)]
        return found


class World:
    def __init__(
        self, target: Path, method: str, folder: Path, executor: str = "plain", kv_cache_mb: int = 1, **limits: Any
    ) -> None:
        wanted = Wanted(dtype="float32", executor=executor, strict=executor != "plain", threads=2, page_tokens=16,
                        kv_cache_mb=kv_cache_mb, max_sequences=8)  # fmt: skip
        self.model: TorchModel = load_torch_model(target, wanted, head=(method, folder))
        self.kept = Kept(METHODS[method].load()(method, None, self.model))
        runner = TorchRunner(self.model, HeadDrafters({method: self.kept}))  # type: ignore[dict-item]
        self.scheduler = Scheduler(limits_of(runner.facts, method=method, **limits))
        self.drafts = GuardedController(Controller(self.scheduler.limits, Proposers(_no_proposer)))
        self.answers: list[Answer] = []
        self._sequence_ids = itertools.count(1)
        self.engine = Engine(
            self.scheduler, runner, self.drafts, deliver=self._deliver, failed=pytest.fail, now=time.monotonic
        )

    def _deliver(self, answers: list[Answer]) -> None:
        self.answers += answers
        self.engine.answers.taken()

    def run(self, *requests: Generate) -> list[Outcome]:
        self.answers.clear()
        outcomes = {next(self._sequence_ids): Outcome() for _ in requests}
        for sequence_id, each in zip(outcomes, requests, strict=True):
            self.scheduler.handle(Arrived(each, sequence_id))
        while self.scheduler.has_work:
            self.engine.step()
        for answer in self.answers:
            if isinstance(answer, Emit):
                outcomes[answer.sequence_id].ids += answer.tokens.ids
            elif isinstance(answer, Finish | Fail):
                outcomes[answer.sequence_id].end = answer.finished if isinstance(answer, Finish) else answer.failed
        return [*outcomes.values()]


def _no_proposer() -> Any:
    raise AssertionError("a method of the worker's own asks no proposer")


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(1, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def features_of(target: Path, tokens: list[int], taps: tuple[Any, ...]) -> torch.Tensor:
    """The target's, of a whole text."""
    options = Options("float32", 32, 16, 256, taps=taps, strict=False)
    executor = PlainExecutor(read_network(target), Weights(target), options)
    found = executor.forward(make_batch([Stretch(tokens, 0, list(range(32)), len(tokens) - 1)], 16)).features
    assert found is not None
    return found


Reference = Callable[[State, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
WRITERS: dict[str, tuple[str, Callable[[Path], State], Reference]] = {
    "eagle3": ("eagle3", reference.write_eagle3, reference.eagle3),
    "eagle": ("eagle", reference.write_eagle, reference.eagle),
    "mtp, mimo": ("mtp", reference.write_mimo_mtp, reference.mimo_mtp),
    "mtp": (
        "mtp",
        lambda folder: reference.write_mtp(folder, LAYERS, shared=False),
        lambda state, tokens, hidden: reference.mtp(state, tokens, hidden, f"model.layers.{LAYERS}."),
    ),
}


def with_shared(state: State, target: Path) -> State:
    """And the model's own tensors, where the head has none."""
    embedding = "model.embed_tokens.weight"
    for name, theirs in (("embed_tokens.weight", embedding), (embedding, embedding), ("lm_head.weight",) * 2):
        if name not in state:
            state[name] = Weights(target).take(theirs, VOCABULARY, HIDDEN)
    return state
