"""Time as a number: the real scheduler, step loop and proposer's link in one thread, over an engine and a wire whose
costs are given. What is measured here is what was decided, and nothing of the machine that runs the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from mesh.clock import SteppedClock
from mesh.errors import DeadlineExceeded, PeerLost
from services.api.drafts import DraftItem, packed
from services.api.messages import Generate, Propose, Proposed, ProposeItem, Sampling, Speculation, Tokens
from services.worker.engine import StepLoop
from services.worker.running.mock import MockRunner, Profile
from services.worker.scheduling.events import Arrived, Emit, Finish
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.remote.proposer_link import Link, ProposerLink
from services.worker.speculation.trust import Record

# Seconds the step thread needs to send a question and to read an answer, and a proposer to give one.
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
    """Its text follows a cycle where it `stays` on it, and jumps about otherwise. `elsewhere`: as on a GPU, what its
    thread does meanwhile takes no time of the step."""

    def __init__(self, cost: Cost, clock: SteppedClock, stays: Callable[[int], bool], elsewhere: bool = False) -> None:
        super().__init__(Profile(acceptance=1.0), pages=4096)
        self._cost = cost
        self._clock = clock
        self._on_cycle = stays
        self._elsewhere = elsewhere
        self.rows = 0

    def step(self, work: Any, meanwhile: Any) -> Any:
        rows = sum(len(item.tokens) for item in work)
        self.rows += rows
        began = self._clock.now
        meanwhile(self._elsewhere)
        until = (began if self._elsewhere else self._clock.now) + self._cost(rows)
        self._clock.now = max(self._clock.now, until)
        return super().step(work)

    def _next(self, key: int, position: int, last: int, earliest_end: int) -> int:
        if self._on_cycle(position):
            return super()._next(key, position, last, earliest_end)
        return 100 + random.Random(position * 7919 + key).randrange(32)

    def follow(self, sequence: Sequence, text: list[int], count: int) -> list[int]:
        """What really comes behind this text."""
        key, last, found = self._key(sequence), text[-1], []
        for position in range(len(text), len(text) + count):
            last = self._next(key, position, last, 0)
            found.append(last)
        return found


class Guess(NamedTuple):
    tokens: list[int]
    chances: list[float] = []  # noqa: RUF012
    latency: float = THINK


# (sequence, text with what is ahead, budget) -> what a proposer says.
Guesser = Callable[["Simulation", Sequence, list[int], int], Guess | None]


class Wire:
    """A proposer that remembers texts as the target's messages tell them."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.answers: dict[int, tuple[float, Proposed | None]] = {}
        self.texts: dict[int, list[int]] = {}

    def send(self, message: Propose, *, timeout: float) -> int:
        simulation = self.simulation
        simulation.clock.sleep(SEND)
        if simulation.dead:
            raise PeerLost("nobody is there")
        drafts, latency = [], 0.0
        answered = not message.items
        for item in message.items:
            guess = self._guess(item)
            if guess is None:
                continue
            answered = True
            latency = max(latency, guess.latency)
            if guess.tokens:
                drafts.append(
                    DraftItem(
                        sequence_id=item.sequence_id,
                        committed=item.committed + len(item.ahead),
                        tokens=guess.tokens,
                        source="simulated",
                        chances=guess.chances,
                    )
                )
        for ended in message.ended:
            self.texts.pop(ended.sequence_id, None)
        reply = Proposed(step=message.step, drafts=packed(drafts)) if answered else None
        self.answers[message.step] = (simulation.clock.now + latency, reply)
        return message.step

    def _guess(self, item: ProposeItem) -> Guess | None:
        start = item.committed - len(item.tokens)
        sequence = self.simulation.scheduler._by_id[item.sequence_id]
        said = sequence.token_ids
        if start:
            before = self.texts[item.sequence_id]
            assert before == said[: len(before)], "what it was told in a hurry didn't come"
            text = before[:start] + item.tokens
        else:
            text = list(item.tokens)
        self.texts[item.sequence_id] = text
        # In a hurry it is told what the text is about to be given.
        assert text[: len(said)] == said, "the proposer has another text"
        return self.simulation.guesser(self.simulation, sequence, [*text, *item.ahead], item.budget)

    def receive(self, ticket: int, timeout: float) -> Proposed:
        clock = self.simulation.clock
        at, reply = self.answers.pop(ticket)
        if reply is None or at > clock.now + timeout:
            clock.sleep(timeout + READ)
            raise DeadlineExceeded("late")
        clock.now = max(clock.now, at) + READ
        return reply

    def arrived(self, ticket: int, timeout: float) -> bool:
        clock = self.simulation.clock
        at, reply = self.answers[ticket]
        if reply is None or at > clock.now + timeout:
            clock.sleep(timeout)
            return False
        clock.now = max(clock.now, at)
        return True

    def give_up(self, ticket: int) -> None:
        self.answers.pop(ticket, None)
        self.simulation.clock.sleep(READ)

    def close(self) -> None: ...


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
        elsewhere: bool = False,
        connect: Callable[[SteppedClock], Link] | None = None,
    ) -> None:
        """`connect` makes another line than `Wire`, whose texts come from `guesser`."""
        self.clock = SteppedClock()
        self.guesser = guesser or (lambda *_: None)
        self.dead = dead
        self.chance = random.Random(7)
        self.runner = PricedRunner(COSTS[cost], self.clock, stays, elsewhere)
        facts = self.runner.facts
        self.scheduler = Scheduler(
            Limits(
                facts.vocab_size, 8192, facts.eos_token_ids, facts.page_tokens, facts.pages,
                method=method, max_sequences=batch, prefix_cache=False,
            )
        )  # fmt: skip
        self.namespace = namespace
        self.link = ProposerLink(
            lambda endpoint: connect(self.clock) if connect else Wire(self),
            target="t",
            epoch=1,
            deadline=DEADLINE,
            now=self.clock,
        )
        self.link.move_to("ipc://somewhere")
        self.texts: dict[int, list[int]] = {}
        # What came of each stream, and when.
        self.heard: dict[int, list[tuple[float, Tokens]]] = {}
        self.loop = StepLoop(
            self.scheduler,
            self.runner,
            self.link,
            deliver=self._deliver,
            failed=lambda message: None,
            observer=self,
            now=self.clock,
        )
        self.steps = 0

    def after_step(self, rows: int, seconds: float) -> None:
        self.steps += 1

    def _deliver(self, delivery: Any) -> None:
        self.loop.taken()
        for item in delivery:
            if isinstance(item, Emit):
                self.texts[item.stream].extend(item.tokens.ids)
                self.heard[item.stream].append((self.clock.now, item.tokens))
            assert isinstance(item, Emit | Finish), item

    def record(self, sequence: Sequence) -> Record:
        assert sequence.record is not None
        return sequence.record

    def run(self, requests: int, tokens: int) -> float:
        """Seconds that so many requests take."""
        first = len(self.texts) + 1
        prompts = [[100 + (stream * 5 + k) % 32 for k in range(20)] for stream in range(first, first + requests)]
        return self.say(prompts, tokens, self.namespace)

    def say(self, prompts: list[list[int]], tokens: int, namespace: str) -> float:
        """Seconds that these requests take."""
        began = self.clock.now
        for stream, prompt in enumerate(prompts, len(self.texts) + 1):
            generate = Generate(
                request_id=str(stream),
                attempt=1,
                token_ids=prompt,
                prompt_tokens=len(prompt),
                sampling=Sampling(max_tokens=tokens, temperature=1.0, seed=stream, ignore_eos=True),
                speculation=Speculation(),
                namespace=namespace,
            )
            self.texts[stream], self.heard[stream] = [], []
            self.loop.post(Arrived(generate, stream, None, self.clock.now))
        self.loop._take_mail()
        while self.scheduler.has_work:
            self.loop._take_mail()
            self.loop._turn()
            self.loop._hand_over()
        self.scheduler.check_idle()
        return self.clock.now - began
