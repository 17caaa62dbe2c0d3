"""Scenery for rehearsal.py: a step loop that nobody starts, over a scheduler and a proposer's line of its own.

One sequence runs there, of the mock engine's cycle; with drafts they come from a line that answers at once, and all of
them stand, or most of them fall and the next step waits for others. The code is the one that serves requests, and
nothing that it touches is shared with anyone: no metrics, no messages, no thread. What it keeps is bounded, for the
text ends at its limit and then begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kernels.waiting import Waiting
from services.api.drafts import DraftItem, packed
from services.api.messages import Generate, Propose, Proposed, ProposeItem, Sampling, Speculation
from services.worker.engine import StepLoop
from services.worker.running.mock import CYCLE, FIRST, MockRunner, Profile
from services.worker.running.runner import Verdict
from services.worker.scheduling.events import Arrived, RunStep
from services.worker.scheduling.limits import AUTO, NAIVE, Limits
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.advice import Advice, AdvisedBy
from services.worker.speculation.lease import LONGEST_LEASE
from services.worker.speculation.rehearsal import Play
from services.worker.speculation.remote.proposer_link import ProposerLink
from services.worker.speculation.remote.succession import Succession

PROMPT, TOKENS, DRAFT = 16, 1500, 8
# How much of what is drafted stands.
ACCEPTANCE: dict[Play, float] = {"plain": 1.0, "stands": 1.0, "falls": 0.8}
# What a step is said to take. Nobody waits for it.
SECONDS = 0.01
CHANCE = 0.9

Args = ParamSpec("Args")
Result = TypeVar("Result")


class StepStage(StepLoop):
    """`prepare` and `walk` in turns."""

    def __init__(self, play: Play) -> None:
        runner = MockRunner(
            Profile(acceptance=ACCEPTANCE[play], vocab_size=FIRST + CYCLE, max_context=2048, pages=64)
        )
        facts = runner.facts
        scheduler = Scheduler(Limits(facts.vocab_size, facts.max_context, (), facts.page_tokens, facts.pages))
        scheduler.advice = _Straight(_nothing)
        line = Succession(_link, took_over=_nothing)
        line.move_to("stage")
        super().__init__(
            scheduler,
            runner,
            AdvisedBy(scheduler.advice, line),
            deliver=lambda delivery: self.taken(),
            failed=_nothing,
            observer=_NoObserver(),
            now=time.monotonic,
        )
        self._method = NAIVE if play == "plain" else AUTO
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
            token_ids=_text(FIRST, PROMPT),
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


def _text(token: int, count: int) -> list[int]:
    return [FIRST + (each - FIRST) % CYCLE for each in range(token, token + count)]


def _nothing(*_: object) -> None: ...


class _Straight(Advice):
    """What goes wrong is rehearsal.py's to say."""

    def __call__(self, act: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs) -> Result | None:
        return act(*args, **kwargs)


class _NoObserver:
    def after_step(self, rows: int, seconds: float) -> None: ...


class AnswersAtOnce:
    """A link (proposer_link.py) to nobody, who knows how the mock engine's text goes on while it goes on as it did."""

    def __init__(self, source: str = "stage", longest: int = LONGEST_LEASE) -> None:
        self._source, self._longest = source, longest
        # Of each text, its last token.
        self._last: dict[int, int] = {}

    def send(self, message: Propose, *, timeout: float) -> Propose:
        return message

    def arrived(self, ticket: Propose, timeout: float) -> bool:
        return True

    def receive(self, ticket: Propose, timeout: float) -> Proposed:
        for sequence_id in [*ticket.forget, *(ended.sequence_id for ended in ticket.ended)]:
            self._last.pop(sequence_id, None)
        return Proposed(step=ticket.step, drafts=packed(self._draft(item) for item in ticket.items))

    def _draft(self, item: ProposeItem) -> DraftItem:
        if item.tokens:
            self._last[item.sequence_id] = item.tokens[-1]
        last = item.ahead[-1] if item.ahead else self._last[item.sequence_id]
        count = min(item.budget, self._longest)
        return DraftItem(
            sequence_id=item.sequence_id,
            committed=item.committed + len(item.ahead),
            tokens=_text(last + 1, count),
            source=self._source,
            match_length=9,
            chances=[CHANCE] * count,
        )

    def give_up(self, ticket: Propose) -> None: ...

    def close(self) -> None:
        self._last.clear()


def _link() -> ProposerLink:
    return ProposerLink(
        lambda endpoint: AnswersAtOnce(), target="stage", epoch=1, deadline=SECONDS, now=time.monotonic
    )
