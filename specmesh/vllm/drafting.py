"""A step's drafts: what of earlier answers still matches, an answer that is waited for where that pays, and the next
question, which the proposer works on while the model computes.

    receive the answer ─▶ follow the rows ─▶ ask and wait ─▶ cut ─▶ ask ahead
                                             (rows without a guess)   (rows that will be)

Rule 1: nothing here can fail a step. A proposer that is slow, dead, new or hostile costs drafts.
Rule 2: one question is open at a time, and no step waits longer than the deadline.

Knows no vLLM and no sockets; for one thread at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from specmesh.vllm.breaker import Breaker
from specmesh.vllm.lengths import Acceptance, RowCost, Waiting
from specmesh.vllm.questions import Ask, Questions
from specmesh.vllm.rows import Rows, Step, Text, misplaced
from specmesh.vllm.wire import Answer

log = logging.getLogger("vllm.specmesh")

# Acceptance is learned from about this many rows of a step, each time from others. To learn from all of them would take
# longer and change little.
LEARNED_ROWS = 4
# Longest time that the proposer may work on a question, as it is told.
MOST_WORK_MS = 60_000


class Link(Protocol):
    """To the proposer; wire.Connection is one."""

    def ask(self, body: bytes, milliseconds: int) -> int: ...
    def receive(self) -> Answer | None: ...
    def wait(self, milliseconds: int) -> bool: ...
    def reopen(self) -> None: ...


class _Open(NamedTuple):
    question: int
    sent_at: float


@dataclass(slots=True)
class Figures:
    """Since the start. `seconds` in the engine's thread, of which `waited_seconds` for answers."""

    steps: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    waited: int = 0
    waited_seconds: float = 0.0
    answered: int = 0
    missed: int = 0
    gave_up: int = 0
    mistakes: int = 0

    def told(self) -> tuple[float, ...]:
        """The fields of EngineCounts."""
        return (
            self.steps, self.drafted, self.accepted, self.answered, self.missed, self.gave_up, self.seconds,
            self.waited_seconds,
        )  # fmt: skip


class Drafting:
    def __init__(
        self,
        link: Link,
        questions: Questions,
        *,
        most: int,
        longest_text: int,
        deadline: float,
        now: Callable[[], float],
        debug: bool = False,
    ) -> None:
        """`most`: tokens of a draft; `deadline`: the longest that a step waits, in seconds."""
        self._link, self._questions = link, questions
        self._most, self._longest, self._deadline, self._now, self._debug = most, longest_text, deadline, now, debug
        # For this draft, and for the next one without another question.
        self._enough = 2 * most + 1
        self._rows = Rows()
        self._acceptance, self._cost, self._waiting = Acceptance(), RowCost(), Waiting()
        self._breaker = Breaker()
        self._open: _Open | None = None
        self._step = 0
        # When the last call came, and how long it waited for its drafts.
        self._last = 0.0
        self._waited = 0.0
        self.figures = Figures()

    def propose(self, sampled: Sequence[list[int]], lengths: Any, tokens: Any) -> list[list[int]]:
        """A draft for each row; the arguments are those of Rows.follow."""
        began = self._now()
        self._receive(began)
        step = self._rows.follow(sampled, lengths, tokens)
        if self._debug:
            self._check(step, lengths, tokens)
        self._questions.end(step.ended)
        texts = [text for text in step.texts if text is not None]
        self._grow(step, sampled, began)
        wanting = [text for text in texts if not text.continuation.left and self._room(text) > 0]
        self._wait_for(wanting)
        least = self._cost.least(len(texts))
        drafts = [[] if text is None else self._cut(text, least) for text in step.texts]
        self._ask_ahead(texts)
        self.figures.steps += 1
        self.figures.rows += len(texts)
        self.figures.seconds += self._now() - began
        return drafts

    def rest(self) -> bool:
        """No call has come for some time: no text runs any more. Tells the proposer, which learns them. False: it has
        not heard all of it, and is to be told again later."""
        self._receive(self._now())
        self._questions.end(self._rows.end_all())
        while self._questions.untold:
            if self._breaker.open:
                self._probe()
            else:
                self._ask([])
            if self._open is None or not self._await(self._deadline):
                return False
        return True

    # The texts -------------------------------------------------------------------------------------------

    def _check(self, step: Step, lengths: Any, tokens: Any) -> None:
        if wrong := misplaced(step, lengths, tokens):
            self.figures.mistakes += len(wrong)
            log.error("rows %s were taken for other texts", wrong)

    def _grow(self, step: Step, sampled: Sequence[list[int]], now: float) -> None:
        drafted = accepted = of_waited = produced = requests = 0
        learns = 1 + (len(sampled) - 1) // LEARNED_ROWS
        for row, (text, new) in enumerate(zip(step.texts, sampled, strict=True), start=self.figures.steps):
            if text is None:
                continue
            requests += 1
            produced += len(new)
            continuation = text.continuation
            at = continuation.at
            right, wrong = continuation.grow(new)
            if continuation.drafted:
                drafted += continuation.drafted
                verified = min(right, continuation.drafted, len(new) - 1)
                accepted += verified
                of_waited += verified * continuation.waited
                continuation.drafted = 0
            continuation.waited = False
            if right + wrong and row % learns == 0:
                self._acceptance.learn(continuation.cells[at : at + right + wrong], right)
        self.figures.accepted += accepted
        if self._waited:
            self._waiting.learn(self._waited, of_waited)
            self._waited = 0.0
        if not step.began and requests == len(sampled):
            self._cost.learn(requests, drafted, produced, now - self._last)
        self._last = now

    def _room(self, text: Text) -> int:
        return min(self._most, self._longest - text.length - 1)

    def _cut(self, text: Text, least: float) -> list[int]:
        continuation = text.continuation
        at, room = continuation.at, self._room(text)
        if room <= 0 or at == len(continuation.tokens):
            return []
        count = self._acceptance.length(continuation.cells[at : at + room], least)
        continuation.drafted = count
        self.figures.drafted += count
        return continuation.tokens[at : at + count]

    # Asking ----------------------------------------------------------------------------------------------

    def _wait_for(self, wanting: list[Text]) -> None:
        """Drafts for texts without a guess, if waiting for them pays."""
        if not wanting or self._breaker.open or not self._waiting.pays(self._cost.rate):
            return
        began = self._now()
        self._await(self._deadline)
        wanting = [text for text in wanting if not text.continuation.left]
        if wanting and self._open is None and self._ask([Ask(text, self._enough, []) for text in wanting]):
            self._await(self._deadline - (self._now() - began))
        for text in wanting:
            text.continuation.waited = True
        self._waited = self._now() - began
        self.figures.waited += 1
        self.figures.waited_seconds += self._waited

    def _ask_ahead(self, texts: list[Text]) -> None:
        if self._breaker.open:
            self._probe()
            return
        asks = []
        for text in texts:
            continuation = text.continuation
            left = continuation.left - continuation.drafted
            # A text that was asked about in this step would be answered the same.
            if left <= self._most and continuation.asked_at != continuation.start and self._room(text) > 0:
                asks.append(Ask(text, self._enough - left, continuation.tokens[continuation.at :]))
        if asks or self._questions.untold:
            self._ask(asks)

    def _probe(self) -> None:
        """Whether it is back; no step waits for that."""
        if self._open is None and self._breaker.allows(self._now()):
            self._link.reopen()
            self._ask([])

    def _ask(self, asks: list[Ask]) -> bool:
        now = self._now()
        if self._open is not None or not self._breaker.allows(now):
            return False
        self._step += 1
        for ask in asks:
            ask.text.continuation.asked = ask.text.length + len(ask.ahead)
            ask.text.continuation.asked_at = ask.text.length
        question = self._link.ask(self._questions.body(self._step, asks, self.figures.told()), MOST_WORK_MS)
        if not question:
            self._miss(now)
            return False
        self._open = _Open(question, now)
        return True

    def _await(self, seconds: float) -> bool:
        """Wait for the answer to the open question; False: it hasn't come in this time, and is given up."""
        until = self._now() + seconds
        while self._open is not None:
            left = until - self._now()
            if left <= 0 or not self._link.wait(max(1, round(left * 1000))):
                self._miss(self._now())
                return False
            self._receive(self._now())
        return True

    def _receive(self, now: float) -> None:
        """The answer to the open question, if it is here. After its deadline it is given up."""
        while self._open is not None:
            try:
                answer = self._link.receive()
                if answer is None:
                    break
                if answer.question == self._open.question:
                    self._take(answer, now)
            except ValueError as error:
                log.warning("specmesh: an answer that is none: %s", error)
                self._miss(now)
        if self._open is not None and now - self._open.sent_at > self._deadline:
            self._miss(now)

    def _take(self, answer: Answer, now: float) -> None:
        if answer.fields is None:
            log.info("specmesh: the proposer doesn't answer: %s", answer.reason)
            self._miss(now)
            return
        drafted = self._questions.answered(answer.fields, answer.life, self._acceptance.cells)
        self._open = None
        if self._breaker.open:
            log.warning("specmesh: the proposer answers again")
        self._breaker.answered()
        self.figures.answered += 1
        for each in drafted:
            text = self._rows.get(each.text_id)
            if text is not None:
                recent = text.tokens(each.length) if each.length < text.continuation.start else []
                text.continuation.join(each, recent)

    def _miss(self, now: float) -> None:
        self._open = None
        self.figures.missed += 1
        was_open = self._breaker.open
        self._breaker.missed(now)
        if self._breaker.open and not was_open:
            self.figures.gave_up += 1
            log.warning("specmesh: no answer from the proposer: going on without drafts until it answers")
