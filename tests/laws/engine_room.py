"""A worker's engine without its process: the real scheduler, engine, controller and client around a runner.

Shared by the law tests. Drafts come from whatever function a test plugs in, so a proposer can be made as bad as one
likes.
"""

from __future__ import annotations

import queue
import random
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from services.api.drafter import Draft, DraftRequest, Text
from services.api.drafts import PlacedDraft, pack
from services.api.messages import Failed, Finished, Generate, Propose, Proposed, Speculation, Tokens
from services.api.sampling import Sampling
from services.api.settings import Settings
from services.proposer.fast import compiling
from services.proposer.index import SuffixIndex
from services.proposer.registry import make_drafters
from services.worker.engine import Engine
from services.worker.mail import ProposersMoved
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.runner import Runner
from services.worker.scheduling.events import Answer, Arrived, Cancelled, Emit, Finish
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.controller import Controller
from services.worker.speculation.guard import GuardedController
from services.worker.speculation.remote.client import ProposerClient
from services.worker.speculation.remote.proposers import Proposers

WAIT = 60.0
PROPOSER = ProposersMoved({"proposer-1": ("ipc://proposer", 1)})


class Ask(NamedTuple):
    """What a proposer is asked: a draft of at most `budget` tokens behind `text` and `ahead`."""

    id: int
    text: list[int]
    prompt_tokens: int
    budget: int
    ahead: list[int]

    @property
    def generated(self) -> int:
        return len(self.text) - self.prompt_tokens


Guess = Callable[[Ask], PlacedDraft | None]


class DraftsBy:
    """A link whose other end answers at once, with drafts made by a function; it knows texts by what it was told."""

    def __init__(self, guess: Guess) -> None:
        self._guess = guess
        self._texts: dict[int, list[int]] = {}

    def send(self, message: Propose) -> Proposed:
        found = []
        for item in message.items:
            start = item.committed - len(item.tokens)
            text = self._texts[item.sequence_id] = [*self._texts.get(item.sequence_id, [])[:start], *item.tokens]
            guess = self._guess(Ask(item.sequence_id, text, item.prompt_tokens, item.budget, item.ahead))
            if guess is not None:
                found.append(guess)
        return Proposed(step=message.step, drafts=pack(found))

    def arrived(self, ticket: Proposed) -> bool:
        return True

    def receive(self, ticket: Proposed, timeout: float) -> Proposed:
        return ticket

    def give_up(self, ticket: Proposed) -> None: ...


def draft(
    ask: Ask, tokens: list[int], sequence_id: int | None = None, length: int | None = None, **more: Any
) -> PlacedDraft:
    return PlacedDraft(
        ask.id if sequence_id is None else sequence_id,
        len(ask.text) + len(ask.ahead) if length is None else length,
        Draft(tokens, **{"source": "test", **more}),
    )


def proposed_by(method: str) -> Guess:
    """A drafter of ours, asked one sequence at a time."""
    settings = Settings.for_tests(method=method, suffix_decoding_max_cached_requests=-1)
    drafter = make_drafters(settings, SuffixIndex.open(settings))[method]
    compiling.start().join()
    texts: dict[int, Text] = {}

    def guess(ask: Ask) -> PlacedDraft | None:
        text = texts.setdefault(ask.id, Text(ask.id, array("i"), ask.prompt_tokens))
        text.tokens.extend(ask.text[len(text.tokens) :])
        [found] = drafter.draft([DraftRequest(text, ask.budget, ask.ahead)])
        return draft(ask, found.tokens, source=found.source) if found.tokens else None

    return guess


class EngineRoom:
    """`ends[sequence_id]` collects every end a sequence was given: law 1 wants exactly one."""

    def __init__(self, runner: Runner | None = None, guess: Guess | None = None, **limits: Any) -> None:
        """`guess` is the proposer; without it there is none."""
        self.runner = runner or MockRunner(Profile(acceptance=0.7), pages=256)
        self.scheduler = Scheduler(limits_of(self.runner.facts, **{"method": "ngram", **limits}))
        self._delivered: queue.SimpleQueue[list[Answer]] = queue.SimpleQueue()
        self.failures: list[str] = []
        # No deadline of drafts ever passes: how fast this machine is changes nothing.
        proposers = Proposers(
            lambda: ProposerClient(
                lambda endpoint: DraftsBy(guess or (lambda ask: None)),
                worker="w", epoch=1, deadline=WAIT, now=time.monotonic,
            )
        )  # fmt: skip
        self.controller = Controller(self.scheduler.limits, proposers)
        self.drafts = GuardedController(self.controller)
        self.engine = Engine(
            self.scheduler,
            self.runner,
            self.drafts,
            deliver=self._deliver,
            failed=self.failures.append,
            now=time.monotonic,
        )
        if guess is not None:
            self.engine.post(PROPOSER)
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, list[Finished | Failed]] = defaultdict(list)
        self.logprobs: dict[int, list[float]] = defaultdict(list)
        self._sent = 0

    def __enter__(self) -> EngineRoom:
        self.engine.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.stop()
        assert self.engine.join(WAIT)

    def _deliver(self, delivery: list[Answer]) -> None:
        self.engine.answers.taken()
        self._delivered.put(delivery)

    def send(
        self, prompt: list[int], deadline: float | None = None, method: str = "", salt: str = "",
        speculation: dict[str, Any] | None = None, **sampling: Any,
    ) -> int:  # fmt: skip
        self._sent += 1
        message = Generate(
            request_id=f"r{self._sent}",
            attempt=0,
            token_ids=prompt,
            prompt_tokens=len(prompt),
            sampling=Sampling(**{"max_tokens": 64, "ignore_eos": True, **sampling}),
            speculation=Speculation(method=method, **(speculation or {})),
            cache_salt=salt,
        )
        self.engine.post(Arrived(message, self._sent, None if deadline is None else time.monotonic() + deadline))
        return self._sent

    def cancel(self, sequence_id: int) -> None:
        self.engine.post(Cancelled(sequence_id))

    def take(self, timeout: float = WAIT) -> None:
        """One delivery."""
        for item in self._delivered.get(timeout=timeout):
            if isinstance(item, Emit):
                self._emitted(item.sequence_id, item.tokens)
            elif isinstance(item, Finish):
                self.ends[item.sequence_id].append(item.finished)
            else:
                self.ends[item.sequence_id].append(item.failed)

    def _emitted(self, sequence_id: int, tokens: Tokens) -> None:
        assert not self.ends[sequence_id], "tokens after the end"
        assert tokens.seq == len(self.tokens[sequence_id]), "a gap or a duplicate"
        self.tokens[sequence_id] += tokens.ids
        self.logprobs[sequence_id] += [each.logprob for each in tokens.logprobs or ()]

    def run(self, sequence_ids: list[int]) -> None:
        """Until each of these has ended."""
        while not all(self.ends[sequence_id] for sequence_id in sequence_ids):
            self.take()

    def settle(self) -> None:
        """Behind everything posted before: a last request goes through, then nothing is left of any."""
        self.run([self.send([200, 201, 202], method="naive", max_tokens=1)])
        self.scheduler.check_idle()


def some_prompt(chance: random.Random, longest: int = 300) -> list[int]:
    return [chance.randrange(100, 132) for _ in range(chance.randint(1, longest))]
