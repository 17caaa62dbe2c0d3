"""services/worker/speculation/choosing.py: what is thought of while a step runs is what would be chosen after it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from services.api.drafts import DraftItem
from services.api.messages import Generate, Sampling, Speculation
from services.worker.running.mock import CYCLE, FIRST, MockRunner, Profile
from services.worker.running.runner import StepWork, size_of
from services.worker.scheduling.events import (
    Arrived,
    AskAhead,
    AskDrafts,
    Cancelled,
    DraftAsk,
    DraftsAwaited,
    DraftsReady,
    Foresee,
    PagesLost,
    RunStep,
    StepDone,
    StepWanted,
    SwitchOff,
    TimeToSpare,
)
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.planning import PLENTY, Planner
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation import choosing
from services.worker.speculation.choosing import Foreseen
from services.worker.speculation.lease import LONGEST_LEASE


class World:
    """Requests that come and go at random, a proposer that is mostly right, and steps that take what they should."""

    def __init__(self, seed: int, foresees: bool, methods: list[str], pages: int = 400, most: int = 64) -> None:
        self.chance = random.Random(seed)
        self.foresees = foresees
        self.methods = methods
        self.runner = MockRunner(Profile(acceptance=0.95, seed=seed), page_tokens=4)
        facts = self.runner.facts
        self.scheduler = Scheduler(
            Limits(facts.vocab_size, 2048, facts.eos_token_ids, 4, pages=pages, max_sequences=most)
        )
        self.streams = 0
        # Of each step, of whom which tokens were computed.
        self.steps: list[list[tuple[int, list[int]]]] = []

    def run(self, steps: int) -> None:
        while len(self.steps) < steps or self.scheduler.has_work:
            if self.streams < 3 or (len(self.steps) < steps and self.chance.random() < 0.03):
                self._arrive()
            if self.chance.random() < 0.01:
                self.hear([Cancelled(self.chance.randint(1, self.streams))])
            if self.chance.random() < 0.005:
                self.hear([PagesLost()])
            self.hear([StepWanted()])
        self.scheduler.check_idle()

    def _arrive(self) -> None:
        self.streams += 1
        prompt = [FIRST + place % CYCLE for place in range(self.chance.randint(1, 40))]
        sampling = Sampling(max_tokens=self.chance.randint(1, 150), ignore_eos=True)
        method = self.methods[self.streams % len(self.methods)]
        self.hear([Arrived(Generate(
            request_id=str(self.streams), attempt=1, token_ids=prompt, prompt_tokens=len(prompt), sampling=sampling,
            speculation=Speculation(method=method), namespace="n",
        ), self.streams)])  # fmt: skip

    def hear(self, events: list[Any]) -> None:
        for event in events:
            for item in self.scheduler.handle(event):
                if isinstance(item, AskAhead | AskDrafts):
                    ahead = isinstance(item, AskAhead)
                    followed = {ask.sequence.id: ask.ahead for ask in item.asks if ask.ahead}
                    if self.foresees and not ahead:
                        self.hear([DraftsAwaited()])
                    self.hear([DraftsReady([self._draft(ask) for ask in item.asks], ahead, followed, seconds=1e-4)])
                elif isinstance(item, RunStep):
                    self._step(item)

    def _step(self, step: RunStep) -> None:
        self.steps.append([(item.sequence.stream, list(item.tokens)) for item in step.work])
        self.hear([TimeToSpare(), Foresee()] if self.foresees else [TimeToSpare()])
        seconds = 0.005 + 2e-4 * size_of(step.work)[0]
        self.hear([StepDone(self.runner.step(step.work), seconds)])

    def _draft(self, ask: DraftAsk) -> DraftItem:
        last = [*ask.sequence.token_ids, *ask.ahead][-1] - FIRST
        count = min(ask.budget, self.chance.randint(1, 24))
        return DraftItem(
            sequence_id=ask.sequence.id,
            committed=ask.sequence.length + len(ask.ahead),
            tokens=[FIRST + (last + place) % CYCLE for place in range(1, count + 1)],
            source="suffix",
            chances=[0.95] * count,
        )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("methods", [["auto"], ["auto", "suffix"], ["auto", "naive", "ngram"]])
def test_with_foresight_and_without_the_same_is_verified_and_the_same_is_counted(
    methods: list[str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[bool] = []
    is_of = Foreseen.is_of
    monkeypatch.setattr(Foreseen, "is_of", lambda *given: came.append(is_of(*given)) or came[-1])
    with_it, without = World(seed, True, methods), World(seed, False, methods)
    with_it.run(200)
    assert methods != ["auto"] or (any(came) and not all(came))
    without.run(200)
    assert with_it.steps == without.steps
    mine, theirs = with_it.scheduler.drafting, without.scheduler.drafting
    for world in (with_it, without):
        world.hear([TimeToSpare()])
    assert mine.counts.ways == theirs.counts.ways and mine.counts.lengths == theirs.counts.lengths
    assert mine.trust.purses() == theirs.trust.purses() != []
    assert vars_of(mine.counts.source("suffix")) == vars_of(theirs.counts.source("suffix"))


def test_who_has_the_step_for_itself_gets_what_it_would_get_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With foresight what is waited for is weighed by itself; without, like a batch."""
    alone: list[bool] = []
    weighed = choosing._alone
    monkeypatch.setattr(choosing, "_alone", lambda *given: (alone.append(True), weighed(*given))[1])
    worlds = [World(5, foresees, ["auto", "suffix"], most=1) for foresees in (True, False)]
    for world in worlds:
        world.run(300)
    assert len(alone) > 20
    assert worlds[0].steps == worlds[1].steps
    purses = [world.scheduler.drafting.trust.purses() for world in worlds]
    assert purses[0] == purses[1] != []


def test_what_rows_cost_is_known_when_the_drafts_come_that_were_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, True, ["auto"])
    drafting = world.scheduler.drafting
    choose, outlook, looked = drafting.choose, choosing.outlook, [0]
    anew: list[int] = []

    def choosing_now(running: list[Any]) -> None:
        known, looked[0] = drafting._outlook[1] is not None, 0
        choose(running)
        anew.append(looked[0] if known else -1)

    def looked_up(*given: Any) -> Any:
        looked[0] += 1
        return outlook(*given)

    monkeypatch.setattr(drafting, "choose", choosing_now)
    monkeypatch.setattr(choosing, "outlook", looked_up)
    world.run(200)
    assert anew.count(0) > 10 * anew.count(1) and anew.count(-1) > 0
    assert drafting._outlook[1] is None


class Noting(World):
    """And what is asked, as (ahead, budget, the most that is of use)."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.asked: list[tuple[bool, int, float]] = []
        handle = self.scheduler.handle

        def noted(event: Any) -> Any:
            found = handle(event)
            for item in found:
                if isinstance(item, AskAhead | AskDrafts):
                    for ask in item.asks:
                        record, ahead = ask.sequence.record, isinstance(item, AskAhead)
                        self.asked.append((ahead, ask.budget, float(record.enough) if record else 0.0))
            return found

        self.scheduler.handle = noted  # type: ignore[method-assign]


def test_what_a_step_waits_for_is_no_longer_than_is_of_use_and_what_is_asked_ahead_is() -> None:
    world = Noting(3, False, ["auto"])
    world.run(300)
    waited = [(budget, most) for ahead, budget, most in world.asked if not ahead]
    assert len(waited) > 20 and all(budget <= most for budget, most in waited)
    # At first nobody knows; then drafts have become shorter than what a lease can hold.
    assert max(budget for budget, _ in waited) > 2 * min(most for _, most in waited)
    assert max(budget for ahead, budget, _ in world.asked if ahead) == LONGEST_LEASE


@pytest.mark.parametrize("pages", [400, 60, 50])
def test_pages_of_the_next_step_are_taken_while_many_are_free(pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    between = 0
    make_room = Planner._make_room

    def counting(*given: Any) -> int:
        nonlocal between
        between += 1
        return make_room(*given)

    monkeypatch.setattr(Planner, "_make_room", counting)
    seen, streams = [], []
    for foresees in (False, True):
        world, between = World(3, foresees, ["auto"], pages), 0
        world.run(200)
        seen.append(between)
        streams.append({stream for step in world.steps for stream, _ in step})
        assert world.scheduler.pages.in_use == 0
    assert streams[0] == streams[1]
    assert seen[1] < 0.3 * seen[0] if pages == 400 else seen[1] < seen[0]


def test_nothing_that_is_cached_goes_for_pages_that_may_be_wanted() -> None:
    world = World(3, True, ["auto"], pages=60)
    taken = []
    while len(world.steps) < 300:
        if world.streams < 3 or world.chance.random() < 0.05:
            world._arrive()
        world.hear([StepWanted()])
        running = world.scheduler.running
        free, cached = world.scheduler.pages.free, world.scheduler.pages.cached
        work = [StepWork(each, [], 0, [0] * 8, True) for each in running]
        world.scheduler.planner.take_ahead(work)
        assert world.scheduler.pages.cached == cached
        taken.append(free - world.scheduler.pages.free)
        assert not taken[-1] or world.scheduler.pages.free >= PLENTY * len(work)
    assert any(taken) and not all(taken)


def vars_of(counts: Any) -> list[Any]:
    return [counts.drafts, counts.drafted, counts.accepted, counts.claimed, counts.believed]


def foreseen() -> tuple[World, Foreseen]:
    """Two that are drafted for, and what was foreseen for both, just come true."""
    for seed in range(50):
        world = World(seed, True, ["auto"])
        world._arrive()
        world._arrive()
        for _ in range(40):
            world.hear([StepWanted()])
            found, running = world.scheduler.drafting._foreseen, world.scheduler.running
            if found is None or len(running) != 2 or any(each.lease is None for each in found.assumed):
                continue
            if found.is_of(running):
                return world, found
    raise AssertionError("nothing came true")


def test_it_is_nothing_when_anything_came_otherwise() -> None:
    world, found = foreseen()
    running = world.scheduler.running
    first = running[0]
    assert not found.is_of(running[:1]) and not found.is_of(running[::-1])
    lease = first.lease
    assert lease is not None
    lease.at += 1
    assert not found.is_of(running)
    lease.at -= 1
    first.lease = None
    assert not found.is_of(running)
    first.lease = lease
    first.computed -= 1
    assert not found.is_of(running), "it has to be computed again"
    first.computed += 1
    first.verifying = False
    assert not found.is_of(running), "it begins anew, with all of it found"
    first.verifying = True
    assert found.is_of(running)


def test_who_is_switched_off_meanwhile_has_no_draft() -> None:
    world, _ = foreseen()
    world.hear([SwitchOff("auto"), StepWanted()])
    assert all(len(tokens) == 1 for _, tokens in world.steps[-1])
