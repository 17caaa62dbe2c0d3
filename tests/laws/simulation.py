"""Time as a number: the real scheduler, engine, controller and client of the proposer in one thread, over a runner and
a wire whose costs are given. What is measured is what was decided, and nothing of the machine that runs the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from mesh_doubles.clock import SteppedClock

from mesh.errors import DeadlineExceeded, NotReached
from services.api.drafter import Draft
from services.api.drafts import PlacedDraft, pack
from services.api.messages import Generate, Propose, Proposed, ProposeItem, Tokens
from services.api.sampling import Sampling
from services.worker.engine import Engine
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import Result, Work
from services.worker.scheduling.events import Answer, Arrived, Emit, Finish
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.acceptance import Acceptance
from services.worker.speculation.controller import Controller
from services.worker.speculation.guard import GuardedController
from services.worker.speculation.remote.client import Link, ProposerClient
from services.worker.speculation.remote.proposers import Proposers

# Seconds the engine needs to send a request and to read an answer, and a proposer to give one.
SEND, READ, THINK = 40e-6, 20e-6, 120e-6
DEADLINE = 0.02


# Seconds by rows.
Cost = Callable[[int], float]
COSTS: dict[str, Cost] = {
    "nearly free rows": lambda rows: 0.010 + 0.0001 * rows,
    "dear rows": lambda rows: 0.005 + 0.001 * rows,
    "rows in blocks of eight": lambda rows: 0.006 + 0.002 * -(-rows // 8),
    "a fast engine": lambda rows: 0.001 + 0.00002 * rows,
}


class PricedRunner(MockRunner):
    """Its text follows a cycle where it `stays` on it, and jumps about otherwise. On a `gpu` a step takes its time from
    the launch on, whatever the engine does meanwhile; else it is computed in `finish`."""

    def __init__(self, cost: Cost, clock: SteppedClock, stays: Callable[[int], bool], gpu: bool = False) -> None:
        super().__init__(Profile(acceptance=1.0), pages=4096, sleep=clock.sleep, now=clock)
        self._cost = cost
        self._on_cycle = stays
        self._gpu = gpu

    def seconds(self, work: Work) -> float:
        return self._cost(sum(item.rows for item in work.items))

    def finish(self) -> Result:
        if not self._gpu:
            self._launched[0] = self._launched[0][0], self._now()
        return super().finish()

    def _next(self, key: int, position: int, last: int, earliest_end: int) -> int:
        if self._on_cycle(position):
            return super()._next(key, position, last, earliest_end)
        return 100 + random.Random(position * 7919 + key).randrange(32)

    def follow(self, sequence: Sequence, text: list[int], count: int) -> list[int]:
        """What really comes behind this text."""
        key, last, found = self._key(self._known[sequence.sequence_id]), text[-1], []
        for position in range(len(text), len(text) + count):
            last = self._next(key, position, last, 0)
            found.append(last)
        return found


class Guess(NamedTuple):
    tokens: list[int]
    confidence: list[float] = []  # noqa: RUF012
    latency: float = THINK


# (sequence, text with what is ahead, budget) -> what a proposer says.
Guesser = Callable[["Simulation", Sequence, list[int], int], Guess | None]


class Wire:
    """A proposer that remembers texts as the worker's messages tell them."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.answers: dict[int, tuple[float, Proposed | None]] = {}
        self.texts: dict[int, list[int]] = {}

    def send(self, message: Propose) -> int:
        simulation = self.simulation
        simulation.clock.sleep(SEND)
        if simulation.dead:
            return message.step
        drafts, latency = [], 0.0
        answered = not message.items
        for item in message.items:
            guess = self._guess(item)
            if guess is None:
                continue
            answered = True
            latency = max(latency, guess.latency)
            if guess.tokens:
                draft = Draft(guess.tokens, "simulated", confidence=guess.confidence)
                drafts.append(PlacedDraft(item.sequence_id, item.committed + len(item.ahead), draft))
        for ended in message.ended:
            self.texts.pop(ended.sequence_id, None)
        reply = Proposed(step=message.step, drafts=pack(drafts)) if answered and not simulation.stopped else None
        self.answers[message.step] = (simulation.clock.now + latency, reply)
        return message.step

    def _guess(self, item: ProposeItem) -> Guess | None:
        start = item.committed - len(item.tokens)
        sequence = self.simulation.sequence(item.sequence_id)
        before = self.texts[item.sequence_id][:start] if start else []
        text = self.texts[item.sequence_id] = before + item.tokens
        assert text == sequence.token_ids, "the proposer has another text"
        return self.simulation.guesser(self.simulation, sequence, [*text, *item.ahead], item.budget)

    def receive(self, ticket: int, timeout: float) -> Proposed:
        clock = self.simulation.clock
        if self.simulation.dead:
            raise NotReached("nobody is there")
        at, reply = self.answers.pop(ticket)
        if reply is None or at > clock.now + timeout:
            clock.sleep(timeout + READ)
            raise DeadlineExceeded("late")
        clock.now = max(clock.now, at) + READ
        return reply

    def arrived(self, ticket: int) -> bool:
        if self.simulation.dead:
            return True
        at, reply = self.answers[ticket]
        return reply is not None and at <= self.simulation.clock.now

    def give_up(self, ticket: int) -> None:
        self.answers.pop(ticket, None)
        self.simulation.clock.sleep(READ)


class Simulation:
    def __init__(
        self,
        cost: str = "nearly free rows",
        guesser: Guesser | None = None,
        *,
        method: str = "auto",
        stays: Callable[[int], bool] = lambda position: True,
        dead: bool = False,
        namespace: str = "n",
        batch: int = 16,
        gpu: bool = False,
        connect: Callable[[SteppedClock], Link] | None = None,
    ) -> None:
        """`connect` makes another line than `Wire`, whose texts come from `guesser`."""
        self.clock = SteppedClock()
        self.guesser = guesser or (lambda *_: None)
        self.dead = dead
        # It hears everything and answers nothing.
        self.stopped = False
        self.chance = random.Random(7)
        self.runner = PricedRunner(COSTS[cost], self.clock, stays, gpu)
        limits = {"max_context": 8192, "method": method, "max_sequences": batch, "prefix_cache": False}
        self.scheduler = Scheduler(limits_of(self.runner.facts, **limits))
        self.namespace = namespace
        self.client = ProposerClient(
            lambda endpoint: connect(self.clock) if connect else Wire(self),
            worker="w",
            epoch=1,
            deadline=DEADLINE,
            now=self.clock,
        )
        proposers = Proposers(lambda: self.client)
        proposers.move_to({"proposer-1": ("ipc://somewhere", 1)})
        self.controller = Controller(self.scheduler.limits, proposers)
        self.drafts = GuardedController(self.controller)
        self.texts: dict[int, list[int]] = {}
        # What came of each sequence, and when.
        self.heard: dict[int, list[tuple[float, Tokens]]] = {}
        self.engine = Engine(
            self.scheduler, self.runner, self.drafts, deliver=self._deliver, failed=lambda message: None, now=self.clock
        )

    @property
    def steps(self) -> int:
        return self.runner.steps

    def _deliver(self, answers: list[Answer]) -> None:
        self.engine.answers.taken()
        for item in answers:
            if isinstance(item, Emit):
                self.texts[item.sequence_id].extend(item.tokens.ids)
                self.heard[item.sequence_id].append((self.clock.now, item.tokens))
            assert isinstance(item, Emit | Finish), item

    def sequence(self, sequence_id: int) -> Sequence:
        return next(each for each in self.scheduler.running if each.sequence_id == sequence_id)

    def acceptance(self, sequence: Sequence) -> Acceptance:
        """What the worker has learned of the drafts of this sequence's namespace."""
        found = self.controller._known[sequence.sequence_id].acceptance
        assert found is not None
        return found

    def run(self, requests: int, tokens: int) -> float:
        """Seconds that so many requests take."""
        first = len(self.texts) + 1
        prompts = [[100 + (number * 5 + k) % 32 for k in range(20)] for number in range(first, first + requests)]
        return self.say(prompts, tokens, self.namespace)

    def say(self, prompts: list[list[int]], tokens: int, namespace: str) -> float:
        """Seconds that these requests take."""
        began = self.clock.now
        for sequence_id, prompt in enumerate(prompts, len(self.texts) + 1):
            generate = Generate(
                request_id=str(sequence_id),
                attempt=1,
                token_ids=prompt,
                prompt_tokens=len(prompt),
                sampling=Sampling(max_tokens=tokens, temperature=1.0, seed=sequence_id, ignore_eos=True),
                namespace=namespace,
            )
            self.texts[sequence_id], self.heard[sequence_id] = [], []
            self.engine.post(Arrived(generate, sequence_id, None, self.clock.now))
        self.engine._take_mail()
        while self.scheduler.has_work:
            self.engine._take_mail()
            self.engine.step()
        self.scheduler.check_idle()
        seconds = self.clock.now - began
        # As the engine does when it has nothing to do.
        self.drafts.check_idle()
        self.drafts.tell()
        assert not self.drafts.failed
        return seconds
