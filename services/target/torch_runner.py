"""The runner of a real model: one forward over all rows of a step, then verification of the drafts.

Knows torch and the strategies, no scheduling. What it must know of how a sequence is sampled it derives once
and keeps on the sequence (`sampler`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.sample.reference import History, Rule
from kernels.verify.reference import Answer, Question
from services.messages import TokenLogprob, TopToken
from services.target.runner import Facts, StepWork, Verdict
from services.target.sampling import stop_ids
from services.target.sequence import Sequence
from services.target.torch_model import ForwardRows
from services.target.verify.policy import ACCEPT
from services.target.verify.registry import STRATEGIES

_SET_THREADS = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
ROWS_WORTH_SHARING = 64


class Model(Protocol):
    """What is needed of services/target/torch_model.py."""

    @property
    def facts(self) -> Facts: ...
    def forward(self, rows: Items[ForwardRows]) -> torch.Tensor: ...
    def copy_page(self, source: int, target: int) -> None: ...


@dataclass(slots=True)
class Sampler:
    """How one sequence is sampled, and what its penalties have counted up to `counted` tokens of its text."""

    rule: Rule
    history: History
    counted: int


class TorchRunner:
    """`accept_policy` is services/target/verify/policy.py's."""

    def __init__(self, model: Model, accept_policy: str = "normal") -> None:
        self.facts = model.facts
        self._model = model
        self._accept = ACCEPT[accept_policy]

    def step(self, work: Items[StepWork]) -> list[Verdict | None]:
        with torch.inference_mode():
            # From a GPU they are copied: what verifies computes on the host so far, and `facts.path` says so.
            logits = self._model.forward([_rows(item) for item in work]).cpu()
            with _one_thread(logits.shape[0]):
                return self._verify(work, logits)

    def copy_page(self, source: int, target: int) -> None:
        with torch.inference_mode():
            self._model.copy_page(source, target)

    def _verify(self, work: Items[StepWork], logits: torch.Tensor) -> list[Verdict | None]:
        """Each strategy judges its sequences together.

        work        a     b (chunk)   c       d
        logits    a0 a1      -      c0 c1 c2  d0
        """
        verdicts: list[Verdict | None] = [None] * len(work)
        groups: dict[str, list[int]] = {}
        begins, begin = [], 0
        for index, item in enumerate(work):
            begins.append(begin)
            if item.verify:
                begin += len(item.draft) + 1
                groups.setdefault(item.sequence.strategy, []).append(index)
        for strategy, members in groups.items():
            rows = (
                logits
                if len(groups) == 1
                else torch.cat([logits[begins[i] : begins[i] + len(work[i].draft) + 1] for i in members])
            )
            questions = [self._question(work[i]) for i in members]
            answers = STRATEGIES[strategy].verify(rows, questions)
            for index, answer in zip(members, answers, strict=True):
                verdicts[index] = _verdict(answer)
        return verdicts

    def _question(self, item: StepWork) -> Question:
        sampler = self._sampler(item.sequence)
        position = item.start + len(item.tokens) - len(item.draft)
        return Question(item.draft, position, sampler.rule, sampler.history, self._accept)

    def _sampler(self, sequence: Sequence) -> Sampler:
        sampler = sequence.sampler
        if not isinstance(sampler, Sampler):
            sampler = sequence.sampler = _make_sampler(sequence, self.facts)
        text, history = sequence.token_ids, sampler.history
        if sampler.rule.penalised:
            for token in text[sampler.counted :]:
                history.add(token)
        history.generated = sequence.generated
        sampler.counted = len(text)
        return sampler


@contextmanager
def _one_thread(rows: int) -> Iterator[None]:
    """Verify on this thread alone: waking others costs more than what a few rows have to be shared.

    OpenMP is told, not torch: `torch.set_num_threads` throws away what oneDNN has prepared.
    """
    if _SET_THREADS is None or rows > ROWS_WORTH_SHARING:
        yield
        return
    before = torch.get_num_threads()
    _SET_THREADS(1)
    try:
        yield
    finally:
        _SET_THREADS(before)


def _make_sampler(sequence: Sequence, facts: Facts) -> Sampler:
    sampling = sequence.sampling
    rule = Rule(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        bias=sampling.logit_bias,
        held_back=_held_back(sequence, facts),
        min_tokens=sampling.min_tokens,
        logprobs=sampling.logprobs,
    )
    prompt = sequence.token_ids[: sequence.prompt_tokens] if rule.penalised else []
    return Sampler(rule, History(tuple(set(prompt))), sequence.prompt_tokens)


def _held_back(sequence: Sequence, facts: Facts) -> tuple[int, ...]:
    """Ids that would end the text, as long as min_tokens forbids its end."""
    ids = stop_ids(sequence.sampling, facts.eos_token_ids)
    return tuple(sorted(token for token in ids if 0 <= token < facts.vocab_size))


def _rows(item: StepWork) -> ForwardRows:
    wanted_from = len(item.tokens) - len(item.draft) - 1 if item.verify else len(item.tokens)
    return ForwardRows(item.tokens, item.start, item.sequence.pages, wanted_from)


def _verdict(answer: Answer) -> Verdict:
    logprobs = None
    if answer.logprobs is not None:
        logprobs = [
            TokenLogprob(logprob=value, top=[TopToken(id=i, logprob=v) for i, v in top])
            for value, top in answer.logprobs
        ]
    return Verdict(answer.tokens, answer.accepted, logprobs, answer.failure)
