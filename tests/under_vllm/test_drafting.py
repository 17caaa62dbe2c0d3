"""Steps of an engine whose model is known, with a real proposer's actor: which drafts there are, and what is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from batch import Batch
from proposer_here import DEADLINE, NAME, NAMESPACE, VOCABULARY, Clock, Here, drafting

from specmesh.vllm.breaker import MISSES, PROBE
from specmesh.vllm.drafting import Drafting

STEP = 0.01
# A text whose second half is its first.
CYCLE = [*range(100, 130)]


class Engine:
    """Texts that go on as `model` says, at most a draft and one token a step, as vLLM verifies them."""

    def __init__(self, drafter: Drafting, clock: Clock, rows: int = 1) -> None:
        self.drafter, self.clock = drafter, clock
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.drafts: list[list[int]] = [[] for _ in range(rows)]
        self.models: list[Callable[[int], int]] = [lambda at: CYCLE[at % len(CYCLE)]] * rows
        self.steps = 0

    def begin(self, row: int, prompt: int, model: Callable[[int], int] | None = None) -> None:
        self.models[row] = model or self.models[row]
        self.texts[row] = [self.models[row](at) for at in range(prompt)]
        self.drafts[row] = []

    def step(self) -> list[list[int]]:
        self.clock.time += STEP
        self.steps += 1
        sampled = []
        for text, draft, model in zip(self.texts, self.drafts, self.models, strict=True):
            new: list[int] = []
            for token in [*draft, -1] if text else []:
                new.append(model(len(text) + len(new)))
                if token != new[-1]:
                    break
            text += new
            sampled.append(new)
        tokens = np.zeros((len(self.texts), 4096), np.int32)
        for row, text in enumerate(self.texts):
            tokens[row, : len(text)] = text
        lengths = np.array([len(text) for text in self.texts])
        self.drafts = self.drafter.propose(sampled, lengths, tokens)
        return self.drafts

    def until(self, length: int, row: int = 0) -> int:
        """Steps until the row's text is that long."""
        began = self.steps
        while len(self.texts[row]) < length:
            self.step()
        return self.steps - began


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def here(clock: Clock) -> Iterator[Here]:
    started = Here(clock)
    yield started
    started.close()


@pytest.fixture
def engine(here: Here, clock: Clock) -> Engine:
    return Engine(drafting(here, clock), clock)


def test_a_text_that_repeats_is_drafted_many_tokens_a_step(engine: Engine) -> None:
    engine.begin(0, 35)
    assert engine.until(335) < 300 / 5
    figures = engine.drafter.figures
    assert figures.accepted > 0.9 * figures.drafted > 200 and figures.mistakes == figures.missed == 0


def test_the_proposer_is_told_whose_text_it_is_once_and_then_what_is_new(engine: Engine, here: Here) -> None:
    engine.begin(0, 35)
    engine.until(200)
    first, *rest = [item for message in here.asked for item in message.items]
    assert (here.asked[0].worker, here.asked[0].vocabulary, here.asked[0].guest) == (NAME, VOCABULARY, True)
    assert (first.first, first.namespace, first.prompt_tokens) == (True, NAMESPACE, 35)
    assert first.tokens == engine.texts[0][:36]
    assert not any(item.first for item in rest)
    sent = [*first.tokens, *(token for item in rest for token in item.tokens)]
    assert sent == engine.texts[0][: len(sent)] and len(sent) > 150


def test_an_answer_serves_several_steps_and_the_next_is_asked_for_meanwhile(engine: Engine, here: Here) -> None:
    engine.begin(0, 35)
    engine.until(100)
    waited, asked = engine.drafter.figures.waited, len(here.asked)
    steps = engine.until(335)
    assert engine.drafter.figures.waited == waited
    assert len(here.asked) - asked <= steps
    assert all(item.ahead for message in here.asked[asked:] for item in message.items)


def test_what_was_learned_from_one_text_drafts_the_next(engine: Engine, here: Here) -> None:
    """A text without repetition: the first time nothing can be known of it."""
    def never_twice(at: int) -> int:
        return 1000 + at

    engine.begin(0, 20, never_twice)
    cold = engine.until(120)
    engine.begin(0, 20, never_twice)
    warm = engine.until(120)
    assert cold >= 99 and warm < 40
    [ended] = [ended for message in here.asked for ended in message.ended]
    assert ended.committed >= 120


def test_the_proposer_is_told_what_the_engine_has_counted(engine: Engine, here: Here) -> None:
    engine.begin(0, 35)
    engine.until(200)
    figures, told = engine.drafter.figures, here.asked[-1].counts
    assert told is not None and 0 < told.accepted <= figures.accepted and told.steps >= figures.steps - 1
    assert (told.drafted, told.missed, told.gave_up) == (figures.drafted, 0, 0)
    here.delay = None
    engine.until(320)
    here.delay = 0.0
    engine.clock.time += PROBE
    engine.until(340)
    told = here.asked[-1].counts
    assert told is not None and told.missed >= MISSES and told.gave_up == 1


def test_a_rest_tells_the_proposer_of_texts_that_nobody_continues(engine: Engine, here: Here) -> None:
    engine.begin(0, 35)
    engine.until(100)
    assert engine.drafter.rest()
    assert [ended.committed for ended in here.asked[-1].ended] == [len(engine.texts[0])]
    before = len(here.asked)
    assert engine.drafter.rest() and len(here.asked) == before


def test_a_rest_without_an_answer_is_tried_again(engine: Engine, here: Here, clock: Clock) -> None:
    engine.begin(0, 35)
    engine.until(100)
    here.delay = None
    assert [engine.drafter.rest() for _ in range(2 * MISSES)] == [False] * 2 * MISSES
    here.delay = 0.0
    clock.time += PROBE
    assert engine.drafter.rest()
    assert len(here.actor._sequences) == 0


def test_drafts_end_before_the_longest_text(here: Here, clock: Clock) -> None:
    engine = Engine(drafting(here, clock, longest_text=100), clock)
    engine.begin(0, 60)
    while len(engine.texts[0]) < 99:
        [draft] = engine.step()
        assert not draft or len(engine.texts[0]) + len(draft) + 1 <= 100
    assert engine.drafter.figures.accepted > 10


def test_a_proposer_that_restarts_gets_the_texts_again(engine: Engine, here: Here) -> None:
    engine.begin(0, 35)
    engine.until(100)
    here.restart()
    engine.until(200)
    again = [item for message in here.asked for item in message.items if item.first]
    assert [len(item.tokens) > 100 for item in again] == [False, True]
    accepted = engine.drafter.figures.accepted
    engine.until(300)
    assert engine.drafter.figures.accepted > accepted + 50


def test_a_text_that_the_proposer_dropped_is_sent_again(engine: Engine, here: Here) -> None:
    engine.begin(0, 35)
    engine.until(100)
    here.actor._sequences.forget(NAME, 1)
    engine.until(200)
    again = [item for message in here.asked for item in message.items if item.first]
    assert [len(item.tokens) > 100 for item in again] == [False, True]


def test_a_proposer_that_is_silent_is_waited_for_a_few_times_and_found_when_it_is_back(
    engine: Engine, here: Here, clock: Clock
) -> None:
    engine.begin(0, 35)
    engine.until(100)
    here.delay, began, steps = None, clock.time, engine.steps
    engine.until(200)
    assert clock.time - began - STEP * (engine.steps - steps) <= (MISSES + 1) * DEADLINE
    assert engine.drafts == [[]]
    # Nobody waits for the question that finds it.
    here.delay = 0.004
    clock.time += PROBE
    reopened = here.reopened
    engine.until(210)
    assert here.reopened == reopened + 1
    assert engine.until(310) < 50


def test_a_proposer_that_is_late_serves_the_step_after(engine: Engine, here: Here) -> None:
    here.delay = STEP / 2
    engine.begin(0, 35)
    assert engine.until(335) < 300 / 5


def test_a_refusal_costs_drafts_and_nothing_else(engine: Engine, here: Here) -> None:
    engine.begin(0, 35)
    # Of this name a newer epoch is known.
    here.actor._sequences.meet(NAME, 2)
    engine.until(60)
    assert engine.drafts == [[]] and engine.drafter.figures.missed > 0


def test_many_requests_at_random_with_a_proposer_that_comes_and_goes(here: Here, clock: Clock) -> None:
    """Every row has its own text, each draft follows it, and nothing is kept of what has ended."""
    batch, drafter = Batch(3), drafting(here, clock)
    longest = 0
    while batch.started < 300:
        clock.time += STEP
        if batch.chance.random() < 0.01:
            here.restart()
        here.delay = batch.chance.choice((0.0, 0.0, 0.0, STEP / 2, None))
        sampled = batch.step()
        drafts = drafter.propose(sampled, batch.lengths, batch.tokens)
        assert len(drafts) == len(sampled)
        for new, draft in zip(sampled, drafts, strict=True):
            assert new or not draft
            longest = max(longest, len(draft))
    assert drafter.figures.mistakes == 0 and longest > 3 and drafter.figures.accepted > 50
    here.delay = 0.0
    clock.time += 1.0
    drafter.propose([], np.zeros(0), np.zeros((0, 1), np.int32))
    clock.time += 1.0
    drafter.rest()
    drafter.rest()
    assert len(here.actor._sequences) == 0
