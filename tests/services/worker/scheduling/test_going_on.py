"""Steps that are launched before the last result is taken are those that would be planned."""

from __future__ import annotations

import random

import pytest
from driving import request

from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import Result, Verdict, Work
from services.worker.scheduling.events import Arrived, Output, SequenceEnded, StepDone
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler


class World:
    """Requests that arrive at given steps."""

    def __init__(self, seed: int, overlaps: bool) -> None:
        chance = random.Random(seed)
        self.overlaps = overlaps
        self.runner = MockRunner(Profile(acceptance=0.5, eos_every=chance.choice([0, 20])), page_tokens=8, pages=60)
        self.scheduler = Scheduler(limits_of(self.runner.facts, method="naive"))
        longest = {"max_tokens": 70, "min_tokens": 30}
        self.arrivals = {
            step: [longest, self.some_request(chance), self.some_request(chance)] for step in (0, 9, 25, 60)
        }
        self.untaken: Result | None = None
        self.went_on = 0
        self.steps: list[list[tuple[int, list[int], int, int]]] = []
        self.out: list[Output] = []

    def some_request(self, chance: random.Random) -> dict[str, int]:
        return {"max_tokens": chance.choice([1, 2, 17, 70]), "min_tokens": chance.choice([0, 0, 30])}

    def run(self) -> None:
        while self.arrivals or self.scheduler.has_work:
            if not self.scheduler.has_work or len(self.steps) in self.arrivals:
                self.take()
                for number, more in enumerate(self.arrivals.pop(min(self.arrivals))):
                    sequence_id = 10 * len(self.arrivals) + number
                    generate = request([100 + sequence_id, 101, 102], **more)
                    self.out += self.scheduler.handle(Arrived(generate, sequence_id))
            self.step()
        self.scheduler.check_idle()

    def answers(self) -> list[Output]:
        return [item for item in self.out if not isinstance(item, SequenceEnded)]

    def step(self) -> None:
        work = self.scheduler.go_on(self.untaken) if self.overlaps and self.untaken is not None else None
        self.went_on += work is not None
        if work is None:
            self.take()
            if not self.scheduler.has_work:
                return
            self.scheduler.schedule()
            work = self.scheduler.place()
        self.runner.launch(work)
        self.take()
        self.untaken = self.runner.finish()
        self.steps.append(seen(work))

    def take(self) -> None:
        if self.untaken is not None:
            self.out += self.scheduler.handle(StepDone(self.untaken))
            self.untaken = None


def seen(work: Work) -> list[tuple[int, list[int], int, int]]:
    assert all(item.verify and not item.draft.tokens for item in work.items)
    return [(item.sequence_id, item.tokens, item.start, len(item.pages)) for item in work.items]


@pytest.mark.parametrize("seed", range(8))
def test_steps_and_answers_are_those_of_planned_ones(seed: int) -> None:
    plain, overlapping = World(seed, False), World(seed, True)
    for world in (plain, overlapping):
        world.run()
    assert overlapping.steps == plain.steps and overlapping.answers() == plain.answers()
    assert overlapping.went_on > len(plain.steps) / 2 > 0 == plain.went_on


def started(*, pages: int = 8) -> tuple[Scheduler, Result]:
    """Two texts with a token each, and the result of the step that gave them their second ones."""
    scheduler = Scheduler(limits_of(MockRunner(Profile(), page_tokens=4, pages=pages).facts, method="naive"))
    for sequence_id in (1, 2):
        scheduler.handle(Arrived(request([100 + sequence_id, 101], max_tokens=20), sequence_id))
    result = Result([Verdict([103], 0), Verdict([104], 0)])
    scheduler.schedule()
    scheduler.place()
    scheduler.handle(StepDone(result))
    scheduler.schedule()
    scheduler.place()
    return scheduler, result


def test_one_that_waits_is_planned_for() -> None:
    scheduler, result = started()
    assert scheduler.go_on(result) is not None
    scheduler, result = started()
    scheduler.handle(Arrived(request([105], max_tokens=3), 3))
    assert scheduler.go_on(result) is None
    scheduler.handle(StepDone(result))
    scheduler.schedule()
    assert [item.sequence_id for item in scheduler.place().items] == [1, 2, 3]


def test_a_failed_sequence_is_planned_for() -> None:
    scheduler, result = started()
    result.verdicts[0] = Verdict([], 0, failure="it fails")
    assert scheduler.go_on(result) is None


def test_without_free_pages_the_step_is_planned_and_preempts() -> None:
    scheduler, result = started(pages=4)
    while (work := scheduler.go_on(result)) is not None:
        scheduler.handle(StepDone(result))
    scheduler.handle(StepDone(result))
    assert work is None and scheduler.pages.available == 0
    scheduler.schedule()
    assert len(scheduler.place().items) == 1 and scheduler.preemptions == 1
