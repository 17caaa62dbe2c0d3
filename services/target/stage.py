"""Scenery for rehearsal.py: a step loop that nobody starts, over a scheduler and a proposer's line of its own.

One sequence runs there, of the mock engine's cycle; with drafts they come from a line that answers at once, and all of
them stand. The code is the one that serves requests, and nothing that it touches is shared with anyone: no metrics, no
messages, no thread. What it keeps is bounded, for the text ends at its limit and then begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kernels.waiting import Waiting
from services.drafts import DraftItem
from services.messages import Generate, Sampling, Speculation
from services.target.advice import Advice, AdvisedBy
from services.target.events import Arrived, DraftAsk, DraftsReady, RunStep
from services.target.limits import AUTO, NAIVE, Limits
from services.target.mock_runner import CYCLE, FIRST, MockRunner, Profile
from services.target.proposer_link import Link, ProposerLink
from services.target.runner import Verdict
from services.target.scheduler import Scheduler
from services.target.sequence import Sequence
from services.target.step_loop import StepLoop
from services.target.succession import Succession

PROMPT, TOKENS, DRAFT = 16, 1500, 8
# All that is drafted stands.
PROFILE = Profile(acceptance=1.0, vocab_size=FIRST + CYCLE, max_context=2048, pages=64)
# What a step is said to take. Nobody waits for it.
SECONDS = 0.01
CHANCE = 0.9

Args = ParamSpec("Args")
Result = TypeVar("Result")


class StepStage(StepLoop):
    """`prepare` and `walk` in turns."""

    def __init__(self, drafts: bool) -> None:
        runner = MockRunner(PROFILE)
        facts = runner.facts
        scheduler = Scheduler(Limits(facts.vocab_size, facts.max_context, (), facts.page_tokens, facts.pages))
        scheduler.advice = _Straight(_nothing)
        super().__init__(
            scheduler,
            runner,
            AdvisedBy(scheduler.advice, _Line(_link, took_over=_nothing)),
            deliver=lambda delivery: self.taken(),
            failed=_nothing,
            observer=_NoObserver(),
            now=time.monotonic,
        )
        self._method = AUTO if drafts else NAIVE
        self._arrivals = 0
        self._verdicts: list[Verdict | None] = []

    def prepare(self) -> None:
        if not self.scheduler.has_work:
            self._arrive()
        self._spare(True)
        self._verdicts = self._runner.step(self._work)

    def walk(self) -> None:
        self._began = self._now() - SECONDS
        self._stepped(self._work, self._verdicts)
        if self.scheduler.has_work:
            self._take_mail()
            self._turn()

    def _arrive(self) -> None:
        """A request. Its first step is on its way afterwards."""
        self._arrivals += 1
        generate = Generate(
            request_id="stage",
            attempt=1,
            token_ids=_text(0, PROMPT),
            prompt_tokens=PROMPT,
            sampling=Sampling(max_tokens=TOKENS, ignore_eos=True),
            speculation=Speculation(method=self._method, num_speculative_tokens=DRAFT),
        )
        self.post(Arrived(generate, self._arrivals))
        self._take_mail()
        self._turn()

    def _run_step(self, step: RunStep) -> None:
        """It runs until the next walk."""
        self._ran = True
        self._work = step.work

    def _rehearse(self) -> Waiting | None:
        return None


def _text(position: int, count: int) -> list[int]:
    return [FIRST + each % CYCLE for each in range(position, position + count)]


def _nothing(*_: object) -> None: ...


class _Straight(Advice):
    """What goes wrong is rehearsal.py's to say."""

    def __call__(self, act: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs) -> Result | None:
        return act(*args, **kwargs)


class _NoObserver:
    def after_step(self, rows: int, seconds: float) -> None: ...


class _Line(Succession):
    """Leads nowhere, answers at once, and knows the text."""

    _ready: DraftsReady | None = None

    def listens(self) -> bool:
        super().listens()
        return True

    def ask(self, asks: list[DraftAsk], wait: float = 0.0) -> None:
        self._ready = DraftsReady([_draft(ask) for ask in asks])

    def ask_ahead(self, asks: list[DraftAsk]) -> None:
        followed = {ask.sequence.id: ask.ahead for ask in asks}
        self._ready = DraftsReady([_draft(ask) for ask in asks], ahead=True, followed=followed)

    def collect(self) -> DraftsReady | None:
        ready, self._ready = self._ready, None
        return ready

    look = collect

    def wait_ahead(self, seconds: float) -> DraftsReady | None:
        return self.collect()

    def forget(self, sequence_ids: list[int], learned: list[Sequence]) -> None: ...

    def rest(self) -> bool:
        return False


def _nobody(endpoint: str) -> Link:
    raise AssertionError("nothing is dialled from the stage")


def _link() -> ProposerLink:
    return ProposerLink(_nobody, target="stage", epoch=1, deadline=SECONDS, now=time.monotonic)


def _draft(ask: DraftAsk) -> DraftItem:
    position = len(ask.sequence.token_ids) + len(ask.ahead)
    return DraftItem(
        sequence_id=ask.sequence.id,
        committed=position,
        tokens=_text(position, ask.budget),
        source="stage",
        match_length=9,
        chances=[CHANCE] * ask.budget,
    )
