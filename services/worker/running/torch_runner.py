"""The runner of a real model: one forward pass over all rows of a step, and verification of the drafts; then, behind a
call of its own, the worker's heads.

Knows torch, but neither strategies nor scheduling: sampler.py makes the questions for verification, kernels/verify
answers them, speculation/heads makes the next drafts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from kernels.verify.questions import Answers, Questions
from models.batch import Stretch
from models.executor import Output
from services.api.drafter import Draft
from services.api.prompt_columns import PromptColumns
from services.worker.grammar.compiled import Grammars
from services.worker.grammar.drafting import drafts_within
from services.worker.grammar.reasoning_limit import drafts_to_limits
from services.worker.grammar.rows import Rows
from services.worker.grammar.state import RowMasks
from services.worker.running.masking import Masking, Masks
from services.worker.running.page_memory import PageMemory
from services.worker.running.pooling import Pool, pool
from services.worker.running.prompt_logprobs import score
from services.worker.running.runner import Facts
from services.worker.running.sampler import Sampler, questions_of
from services.worker.running.verifier import UnderWay, Verifier, VerifierElsewhere
from services.worker.running.work import Drafted, Logprob, NewSequence, Result, SequenceWork, TopId, Verdict, Work

NOT_FINITE = "the model gave logits that are not finite, or none of its tokens is allowed"
NO_EMBEDDING = "the model gave hidden states that are not finite"


class Model(Protocol):
    """The part of running/torch_model.py's TorchModel that is used here."""

    @property
    def facts(self) -> Facts: ...
    @property
    def verifier(self) -> Verifier: ...
    @property
    def elsewhere(self) -> bool:
        """Whether `forward` returns before anything is computed."""
        ...

    @property
    def feeds(self) -> bool:
        """Whether its first `fed` rows can be `given` the tokens of the verifier's last answers, on the device."""
        ...

    def forward(self, rows: Items[Stretch], given: torch.Tensor | None = None, fed: int = 0) -> Output: ...
    def page_memory(self) -> PageMemory: ...
    def copy_page(self, source: int, target: int) -> None: ...
    def copy_state(self, source: int, target: int) -> None: ...
    def keep(self, paths: Items[tuple[int, list[int]]]) -> None: ...


class StepDrafters(Protocol):
    """The worker's own drafters, all of them together. Fails no request."""

    # Methods that run here.
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def reading_seconds(self) -> float:
        """Of the last step: the time in which the drafters read its tokens."""
        ...

    @property
    def lost(self) -> list[int]:
        """Behind the last step: sequences that can't be drafted for any more."""
        ...

    @property
    def reads(self) -> bool:
        """Whether `step` needs features."""
        ...

    def join(self, new: NewSequence) -> None: ...
    def forget(self, sequence_ids: Items[int]) -> None: ...
    def step(self, items: list[SequenceWork], verdicts: list[Verdict | None], features: Any) -> list[Draft]:
        """Read a step, and draft for the items that ask for it."""
        ...


class NoDrafters:
    names: tuple[str, ...] = ()
    reading_seconds = 0.0
    lost: tuple[int, ...] = ()
    reads = False

    def join(self, new: NewSequence) -> None: ...
    def forget(self, sequence_ids: Items[int]) -> None: ...
    def step(self, items: list[SequenceWork], verdicts: list[Verdict | None], features: Any) -> list[Draft]:
        return []


@dataclass(slots=True)
class _Verification:
    """Of a step, in the order of its verified items."""

    items: list[SequenceWork]
    samplers: list[Sampler]
    questions: Questions
    # Where it began with the step.
    under_way: UnderWay | None = None


@dataclass(slots=True)
class _Launched:
    """A step that isn't finished."""

    work: Work
    # When its pass began.
    began: float = 0.0
    # Where it is computed elsewhere.
    output: Output | None = None
    # Where all that is asked was known at the launch.
    verification: _Verification | None = None
    # Where some are computed beside the model.
    masks: Future[Masks] | None = None


class TorchRunner:
    """services/worker/running/runner.py's Runner."""

    def __init__(
        self,
        model: Model,
        drafters: StepDrafters | None = None,
        counts: Callable[[], dict[str, int]] = dict,
        grammars: Grammars | None = None,
    ) -> None:
        self.facts = model.facts
        self.grammars = grammars
        self.counts = counts
        self._model = model
        self._drafters = drafters or NoDrafters()
        self._samplers: dict[int, Sampler] = {}
        self._pools: dict[int, Pool] = {}
        self._masking = Masking()
        self._launched: deque[_Launched] = deque()
        # Of the last finished step its work, and when that was.
        self._work, self._ended = Work(), 0.0
        # What the drafters haven't read yet.
        self._finished: tuple[list[Verdict | None], torch.Tensor | None] | None = None

    @property
    def elsewhere(self) -> bool:
        return self._model.elsewhere

    @property
    def drafters(self) -> tuple[str, ...]:
        return self._drafters.names

    def page_memory(self) -> PageMemory:
        return self._model.page_memory()

    def grammar_drafts(self, drafts: Mapping[int, Draft], longest: Mapping[int, int]) -> dict[int, Draft]:
        samplers = {each: self._samplers[each] for each in longest}
        states = {each: known.grammar for each, known in samplers.items() if known.grammar is not None}
        found = drafts_within(states, drafts, longest)
        limits = {each: known.reasoning for each, known in samplers.items() if known.reasoning is not None}
        return found | drafts_to_limits(limits, {**drafts, **found}, longest)

    def launch(self, work: Work) -> None:
        for sequence_id in work.ended:
            self._samplers.pop(sequence_id, None)
            self._pools.pop(sequence_id, None)
        if len(work.fed) == len(work.items) > 0:
            with torch.inference_mode():
                self._launched.append(self._launch_fed(work))
            return
        assert self._finished is None or not self._drafters.names, "the drafters read every step"
        self._drafters.forget(work.ended)
        for new in work.new:
            self._samplers[new.sequence_id] = Sampler(new, self.facts, self.grammars)
            self._drafters.join(new)
            if new.pooling:
                self._pools[new.sequence_id] = Pool()
        masks = self._masking.begin(
            [
                (item, sampler)
                for item in work.items
                if item.chooses and (sampler := self._samplers[item.sequence_id]).rows is not None
            ]
        )
        with torch.inference_mode():
            for source, target in work.copies:
                self._model.copy_page(source, target)
            for source, target in work.states:
                self._model.copy_state(source, target)
            launched = _Launched(work, masks=masks)
            if self._model.elsewhere:
                output = launched.output = self._forward(launched)
                launched.verification = self._start_verification(work.items, output.logits)
            self._launched.append(launched)

    def _launch_fed(self, work: Work) -> _Launched:
        """One row of each, all of which were in the step before."""
        began = time.perf_counter()
        before = self._launched[-1].verification
        assert before is not None and before.under_way is not None
        output = self._model.forward(_fed_rows(work), before.under_way.there, len(work.fed))
        asked = self._asked(work.items, [before.samplers[place] for place in work.fed], {})
        self._start(asked, output.logits)
        return _Launched(work, began, output, asked)

    @property
    def feeds(self) -> bool:
        """Only if nobody reads the step's logits or features once it is verified, and the next questions don't depend
        on its tokens."""
        verification = self._launched[-1].verification
        if verification is None or not self._model.feeds or self._drafters.names:
            return False
        return not any(sampler.follows or sampler.logprobs >= 0 for sampler in verification.samplers)

    def finish(self) -> Result:
        with torch.inference_mode():
            launched = self._launched.popleft()
            work = self._work = launched.work
            if len(work.fed) == len(work.items) > 0:
                return self._finish_fed(launched)
            output = launched.output or self._forward(launched)
            embeddings = self._pool(work.items, output)
            logits, scores = self._score(work.items, output.logits)
            masks = {} if launched.masks is None else launched.masks.result()
            verdicts = self._verify(work.items, logits, masks, launched.verification)
            for index, item in enumerate(work.items):
                if item.scored and item.sequence_id not in scores:
                    verdicts[index] = Verdict([], 0, failure=NOT_FINITE)
                if item.pooled and item.verify:
                    verdicts[index] = Verdict([], 0, failure="" if item.sequence_id in embeddings else NO_EMBEDDING)
            for item, verdict in zip(work.items, verdicts, strict=True):
                if verdict is not None and (sampler := self._samplers[item.sequence_id]).follows:
                    sampler.commit(verdict.tokens)
            # A copy, because the model overwrites its own in the next step. It is made here, because a call into torch
            # behind `emit` lets the event loop run: it sends all of the step's tokens while the next step waits.
            features = output.features if self._drafters.reads else None
            self._finished = verdicts, None if features is None else features.clone()
            return Result(verdicts, self._seconds(launched), scores, embeddings)

    def _finish_fed(self, launched: _Launched) -> Result:
        asked = launched.verification
        assert asked is not None and asked.under_way is not None
        verdicts: list[Verdict | None] = [*_verdicts(asked.under_way.wait(), range(len(asked.items) + 1))]
        self._finished = verdicts, None
        return Result(verdicts, self._seconds(launched))

    def _seconds(self, launched: _Launched) -> float:
        """Of a step that ends now, since the one before it has ended."""
        began, self._ended = max(launched.began, self._ended), time.perf_counter()
        return self._ended - began

    def draft(self) -> Drafted:
        assert self._finished is not None, "behind a step that is finished"
        (verdicts, features), self._finished = self._finished, None
        began = time.perf_counter()
        with torch.inference_mode():
            drafts = self._drafters.step(self._work.items, verdicts, features)
        return Drafted(drafts, time.perf_counter() - began, self._drafters.reading_seconds, [*self._drafters.lost])

    def _forward(self, launched: _Launched) -> Output:
        launched.began, work = time.perf_counter(), launched.work
        rows = [_rows(item) for item in work.items[len(work.fed) :]]
        if not work.fed:
            return self._model.forward(rows)
        before = self._launched[-1].verification
        assert before is not None and before.under_way is not None
        return self._model.forward([*_fed_rows(work), *rows], before.under_way.there, len(work.fed))

    def _pool(self, items: list[SequenceWork], output: Output) -> dict[int, bytes]:
        if not any(item.pooled for item in items):
            return {}
        assert output.final is not None
        return pool(items, output.final[len(output.logits) :], self._pools)

    def _score(
        self, items: list[SequenceWork], logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[int, PromptColumns]]:
        """The logits of the rows to be verified, and what is asked of the prompts' rows."""
        if not any(item.scored for item in items):
            return logits, {}
        counts = {item.sequence_id: self._samplers[item.sequence_id].prompt_logprobs for item in items if item.scored}
        return score(self._model.verifier, items, logits, counts)

    def _verify(
        self,
        items: list[SequenceWork],
        logits: torch.Tensor,
        masked: dict[int, RowMasks | None],
        asked: _Verification | None,
    ) -> list[Verdict | None]:
        """`asked`: what was already asked when the step was launched.

        items       a     b (chunk)   c       d
        logits    a0 a1      -      c0 c1 c2  d0
        """
        asked = asked or self._asked_of(items, masked)
        if asked is None:
            return [None] * len(items)
        verified, samplers, questions = asked.items, asked.samplers, asked.questions
        under_way = asked.under_way
        answers = self._model.verifier.verify(logits, questions) if under_way is None else under_way.wait()
        begins: list[int] = questions.begins.tolist()
        verdicts = _verdicts(answers, begins)
        if masked:
            paths = answers.rows.tolist()
            for index, (item, sampler) in enumerate(zip(verified, samplers, strict=True)):
                if sampler.rows is not None:
                    begin, verdict = begins[index], verdicts[index]
                    path = [row - begin for row in paths[begin : begin + len(verdict.tokens)]]
                    verdicts[index] = _within(verdict, path, masked[item.sequence_id], sampler.rows)
        if any(item.draft.parents for item in verified):
            self._keep(items, answers, begins)
        if any(sampler.logprobs >= 0 for sampler in samplers):
            self._add_logprobs(logits, samplers, verdicts, answers, begins)
        following = iter(verdicts)
        return [next(following) if item.chooses else None for item in items]

    def _start_verification(self, items: list[SequenceWork], logits: torch.Tensor) -> _Verification | None:
        """Where all that it needs is known. Masks come beside the model; scores of prompts use the same logits."""
        if any(item.scored or self._samplers[item.sequence_id].masked_late for item in items):
            return None
        asked = self._asked_of(items, {})
        if asked is not None:
            self._start(asked, logits)
        return asked

    def _start(self, asked: _Verification, logits: torch.Tensor) -> None:
        asked.under_way = cast(VerifierElsewhere, self._model.verifier).start(logits, asked.questions)

    def _asked_of(self, items: list[SequenceWork], masked: Mapping[int, RowMasks | None]) -> _Verification | None:
        verified = [item for item in items if item.chooses]
        if not verified:
            return None
        return self._asked(verified, [self._samplers[item.sequence_id] for item in verified], masked)

    def _asked(
        self, verified: list[SequenceWork], samplers: list[Sampler], masked: Mapping[int, RowMasks | None]
    ) -> _Verification:
        return _Verification(verified, samplers, questions_of(verified, samplers, self.facts.vocab_size, masked))

    def _keep(self, items: list[SequenceWork], answers: Answers, begins: list[int]) -> None:
        """Keys and values of a tree's accepted path move to where a chain's would be."""
        verified = (index for index, item in enumerate(items) if item.chooses)
        accepted, rows = answers.accepted.tolist(), answers.rows.tolist()
        self._model.keep(
            [
                (index, [row - begin for row in rows[begin + 1 : begin + 1 + count]])
                for index, begin, count in zip(verified, begins, accepted, strict=False)
                if items[index].draft.parents
            ]
        )

    def _add_logprobs(
        self, logits: torch.Tensor, samplers: list[Sampler], verdicts: list[Verdict], answers: Answers,
        begins: list[int],
    ) -> None:  # fmt: skip
        wanted: list[tuple[Verdict, int]] = []
        places: list[int] = []
        for sampler, verdict, begin in zip(samplers, verdicts, begins, strict=False):
            if sampler.logprobs >= 0 and verdict.tokens:
                wanted.append((verdict, sampler.logprobs))
                places += range(begin, begin + len(verdict.tokens))
        if not wanted:
            return
        rows, tokens = answers.rows[places], answers.tokens[places]
        most = max(count for _, count in wanted)
        own, ids, values = (each.tolist() for each in self._model.verifier.logprobs(logits, rows, tokens, most))
        at = 0
        for verdict, count in wanted:
            verdict.logprobs = []
            for place in range(at, at + len(verdict.tokens)):
                top = zip(ids[place][:count], values[place][:count], strict=True)
                verdict.logprobs.append(Logprob(own[place], [TopId(*each) for each in top]))
            at += len(verdict.tokens)


def _verdicts(answers: Answers, begins: Items[int]) -> list[Verdict]:
    tokens, accepted, failed = answers.tokens.tolist(), answers.accepted.tolist(), answers.failed.tolist()
    return [
        Verdict([], 0, failure=NOT_FINITE)
        if failed[index]
        else Verdict(tokens[begin : begin + accepted[index] + 1], accepted[index])
        for index, begin in enumerate(begins[:-1])
    ]


def _within(verdict: Verdict, path: list[int], masks: RowMasks | None, rows: Rows) -> Verdict:
    """As far as the masks of its path are known. A row without one has chosen among all ids, and doesn't count:

        path      0    2    3
        known     yes  yes  no
        tokens    t1   t2   t3       t1 and t2 remain, the latter as the token of row 2's own
    """
    if masks is None:
        return Verdict([], 0, failure="its grammar failed")
    if not masks.known[0]:
        problem = rows.problem()
        return Verdict([], 0, failure=problem.message, reason=problem.reason)
    count = next((place for place, row in enumerate(path) if not masks.known[row]), len(path))
    return verdict if count == len(path) else Verdict(verdict.tokens[:count], count - 1)


def _fed_rows(work: Work) -> list[Stretch]:
    """Of the items that get their token on the device: its place there."""
    return [
        Stretch([place], item.start, item.pages, 0, state=item.state, settled=item.start + 1)
        for item, place in zip(work.items, work.fed, strict=False)
    ]


def _rows(item: SequenceWork) -> Stretch:
    tokens, draft = item.tokens, item.draft
    following = draft.tokens
    return Stretch(
        tokens + following if following else tokens, item.start, item.pages, item.logits_from, draft.parents,
        state=item.state, settled=item.position, states_only=item.pooled > 0,
    )  # fmt: skip
