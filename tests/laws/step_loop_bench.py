"""A target's engine room without its process: the real scheduler and step loop around a runner, in one thread's reach.

Shared by the law tests. Drafts come from whatever object a test plugs in, so a proposer can be made as bad as
one likes.
"""

from __future__ import annotations

import queue
import random
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from services.api.drafts import DraftItem
from services.api.messages import Failed, Finished, Generate, Sampling, Speculation, Tokens
from services.api.settings import Settings
from services.proposer.proposer import Ask, View
from services.proposer.registry import make_proposers
from services.proposer.suffix_store import compiling
from services.worker.engine import StepLoop
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.runner import Runner
from services.worker.scheduling.events import Arrived, Cancelled, DraftAsk, DraftsReady, Emit, Finish
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence

WAIT = 60.0


class NoDrafts:
    def move_to(self, endpoint: str) -> None: ...
    def try_out(self, endpoint: str) -> None: ...
    def forget(self, sequence_ids: list[int], learned: list[Sequence]) -> None: ...
    def listens(self) -> bool:
        return True

    def ask_ahead(self, asks: list[DraftAsk]) -> None: ...
    def hurry(self, asks: list[DraftAsk]) -> None: ...
    def look(self) -> DraftsReady | None:
        return None

    def wait_ahead(self, seconds: float) -> DraftsReady | None:
        return None

    def ask(self, asks: list[DraftAsk], wait: float) -> None: ...
    def collect(self, within: float | None = None) -> DraftsReady | None:
        return None

    def expects(self) -> bool:
        return False

    def rehearse(self) -> None: ...
    def rehearsed(self) -> bool:
        return True

    def rest(self) -> bool:
        return False
    def close(self) -> None: ...


class DraftsBy(NoDrafts):
    """Drafts made by a function of the ask, asked ahead or between steps."""

    def __init__(self, guess: Callable[[DraftAsk], DraftItem | None]) -> None:
        self._guess = guess
        self._open: DraftsReady | None = None

    def ask_ahead(self, asks: list[DraftAsk]) -> None:
        followed = {ask.sequence.id: ask.ahead for ask in asks if ask.ahead}
        self._open = DraftsReady(self._guesses(asks), ahead=True, followed=followed)

    def ask(self, asks: list[DraftAsk], wait: float) -> None:
        self._open = DraftsReady(self._guesses(asks))

    def _guesses(self, asks: list[DraftAsk]) -> list[DraftItem]:
        return [item for ask in asks if (item := self._guess(ask)) is not None]

    def collect(self, within: float | None = None) -> DraftsReady | None:
        found, self._open = self._open, None
        return found

    look = collect

    def wait_ahead(self, seconds: float) -> DraftsReady | None:
        return self.collect()


def draft(ask: DraftAsk, tokens: list[int], **more: Any) -> DraftItem:
    committed = ask.sequence.length + len(ask.ahead)
    fields = {"sequence_id": ask.sequence.id, "committed": committed, "source": "test", **more}
    return DraftItem(tokens=tokens, **fields)


def proposed_by(method: str) -> Callable[[DraftAsk], DraftItem | None]:
    """A proposer of ours, asked one sequence at a time."""
    proposer = make_proposers(Settings.for_tests(method=method, suffix_decoding_max_cached_requests=-1))[method]
    if method != "naive":
        compiling.start().join()
    views: dict[int, View] = {}

    def guess(ask: DraftAsk) -> DraftItem | None:
        sequence = ask.sequence
        view = views.setdefault(sequence.id, View(sequence.id, array("i"), sequence.prompt_tokens))
        view.tokens.extend(sequence.token_ids[len(view.tokens) :])
        [found] = proposer.propose([Ask(view, ask.budget, ask.ahead)])
        return draft(ask, found.tokens, source=found.source) if found.tokens else None

    return guess


class _NotWatching:
    def after_step(self, rows: int, seconds: float) -> None: ...


class EngineRoom:
    """`ends[stream]` collects every end a stream was given: law 1 wants exactly one."""

    def __init__(self, runner: Runner | None = None, drafts: NoDrafts | None = None, **limits: Any) -> None:
        self.runner = runner or MockRunner(Profile(acceptance=0.7), pages=256)
        facts = self.runner.facts
        self.scheduler = Scheduler(
            Limits(
                vocab_size=facts.vocab_size,
                max_context=facts.max_context,
                eos_token_ids=tuple(facts.eos_token_ids),
                page_tokens=facts.page_tokens,
                **{"pages": facts.pages, "branch_pages": facts.branch_pages, "method": "ngram", **limits},
            )
        )
        self._delivered: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.failures: list[str] = []
        self.loop = StepLoop(
            self.scheduler,
            self.runner,
            drafts or NoDrafts(),
            deliver=self._deliver,
            failed=self.failures.append,
            observer=_NotWatching(),
            now=time.monotonic,
        )
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, list[Finished | Failed]] = defaultdict(list)
        self.logprobs: dict[int, list[float]] = defaultdict(list)
        self._streams = 0

    def __enter__(self) -> EngineRoom:
        self.loop.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.loop.stop()
        assert self.loop.join(WAIT)

    def _deliver(self, delivery: Any) -> None:
        self.loop.taken()
        self._delivered.put(delivery)

    def send(
        self, prompt: list[int], deadline: float | None = None, method: str = "", salt: str = "", **sampling: Any
    ) -> int:
        self._streams += 1
        message = Generate(
            request_id=f"r{self._streams}",
            attempt=0,
            token_ids=prompt,
            prompt_tokens=len(prompt),
            sampling=Sampling(**{"max_tokens": 64, "ignore_eos": True, **sampling}),
            speculation=Speculation(method=method),
            cache_salt=salt,
        )
        self.loop.post(Arrived(message, self._streams, None if deadline is None else time.monotonic() + deadline))
        return self._streams

    def cancel(self, stream: int) -> None:
        self.loop.post(Cancelled(stream))

    def take(self, timeout: float = WAIT) -> None:
        """One delivery."""
        for item in self._delivered.get(timeout=timeout):
            if isinstance(item, Emit):
                self._emitted(item.stream, item.tokens)
            elif isinstance(item, Finish):
                self.ends[item.stream].append(item.finished)
            else:
                self.ends[item.stream].append(item.failed)

    def _emitted(self, stream: int, tokens: Tokens) -> None:
        assert not self.ends[stream], "tokens after the end"
        assert tokens.seq == len(self.tokens[stream]), "a gap or a duplicate"
        self.tokens[stream] += tokens.ids
        self.logprobs[stream] += [each.logprob for each in tokens.logprobs or ()]

    def run(self, streams: list[int]) -> None:
        """Until each of these has ended."""
        while not all(self.ends[stream] for stream in streams):
            self.take()

    def settle(self) -> None:
        """Behind everything posted before: a last request goes through, then nothing is left of any."""
        self.run([self.send([200, 201, 202], method="naive", max_tokens=1)])
        self.scheduler.check_idle()


def some_prompt(chance: random.Random, longest: int = 300) -> list[int]:
    return [chance.randrange(100, 132) for _ in range(chance.randint(1, longest))]
