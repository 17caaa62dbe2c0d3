"""Steps that are launched before the last result is taken are those that would be planned."""

from __future__ import annotations

import random

import msgspec
import pytest
from driving import request

from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import Result, Verdict, Work
from services.worker.scheduling.events import Arrived, Cancelled, Fail, Output, SequenceEnded, StepDone
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler


class World:
    """Requests that arrive at given steps."""

    def __init__(self, seed: int, way: str) -> None:
        """`way`: steps are "planned", "go on" behind a result, or are made "ahead" of it."""
        chance = random.Random(seed)
        self.way = way
        self.runner = MockRunner(Profile(acceptance=0.5, eos_every=chance.choice([0, 20])), page_tokens=8, pages=60)
        self.scheduler = Scheduler(limits_of(self.runner.facts, method="naive"))
        longest = {"max_tokens": 70, "min_tokens": 30}
        self.arrivals = {
            step: [longest, self.some_request(chance), self.some_request(chance)] for step in (0, 9, 25, 60)
        }
        self.untaken: Result | None = None
        self.went_on = 0
        self.ahead: Work | None = None
        self.steps: list[list[tuple[int, list[int], int, int]]] = []
        self.out: list[Output] = []

    def some_request(self, chance: random.Random) -> dict[str, int]:
        return {"max_tokens": chance.choice([1, 2, 17, 70]), "min_tokens": chance.choice([0, 0, 30])}

    def run(self) -> None:
        while self.arrivals or self.scheduler.has_work:
            if not self.scheduler.has_work or len(self.steps) in self.arrivals:
                if not self.scheduler.has_work:
                    self.wait()
                self.take()
                for number, more in enumerate(self.arrivals.pop(min(self.arrivals))):
                    sequence_id = 10 * len(self.arrivals) + number
                    generate = request([100 + sequence_id, 101, 102], **more)
                    self.out += self.scheduler.handle(Arrived(generate, sequence_id))
            self.step()
        self.wait()
        self.take()
        self.scheduler.check_idle()

    def wait(self) -> None:
        """For a step that was made ahead of the end of all texts."""
        if self.ahead is not None:
            self.take()
            self.untaken, self.ahead = self.runner.finish(), None

    def answers(self) -> list[Output]:
        return [item for item in self.out if not isinstance(item, SequenceEnded)]

    def step(self) -> None:
        work, self.ahead = self.ahead, None
        if work is None:
            work = self.scheduler.go_on(self.untaken) if self.way != "planned" and self.untaken is not None else None
            self.went_on += work is not None
            if work is None:
                self.take()
                if not self.scheduler.has_work:
                    return
                self.scheduler.schedule()
                work = self.scheduler.place()
            self.runner.launch(work)
        if self.way == "ahead" and (ahead := self.scheduler.ahead()) is not None:
            self.runner.launch(ahead)
            self.went_on += 1
            self.ahead = ahead
        self.take()
        self.untaken = self.runner.finish()
        self.steps.append(seen(work))
        if self.ahead is not None:
            self.scheduler.saw(self.untaken)
            self.ahead = self.ahead.known(self.untaken)

    def take(self) -> None:
        if self.untaken is not None:
            self.out += self.scheduler.handle(StepDone(self.untaken))
            self.untaken = None


def seen(work: Work) -> list[tuple[int, list[int], int, int]]:
    assert all(item.verify and not item.draft.tokens for item in work.items)
    return [(item.sequence_id, item.tokens, item.start, len(item.pages)) for item in work.items]


@pytest.mark.parametrize("seed", range(8))
def test_steps_and_answers_are_those_of_planned_ones(seed: int) -> None:
    plain, overlapping = World(seed, "planned"), World(seed, "go on")
    for world in (plain, overlapping):
        world.run()
    assert overlapping.steps == plain.steps and overlapping.answers() == plain.answers()
    assert overlapping.went_on > len(plain.steps) / 2 > 0 == plain.went_on


@pytest.mark.parametrize("seed", range(8))
def test_answers_of_steps_that_were_made_ahead_are_those_of_planned_ones(seed: int) -> None:
    """And so are the rows of each text, but for one more where it ended with a stop id."""
    plain, ahead = World(seed, "planned"), World(seed, "ahead")
    for world in (plain, ahead):
        world.run()
    assert by_sequence(ahead.answers()) == by_sequence(plain.answers())
    assert ahead.went_on > len(plain.steps) / 2
    expected, found = rows_of(plain), rows_of(ahead)
    assert {each: rows[: len(expected[each])] for each, rows in found.items()} == expected
    assert all(len(rows) <= len(expected[each]) + 1 for each, rows in found.items())


def by_sequence(answers: list[Output]) -> dict[int, list[Output]]:
    found: dict[int, list[Output]] = {}
    for each in answers:
        found.setdefault(each.sequence_id, []).append(each)  # type: ignore[union-attr]
    return found


def rows_of(world: World) -> dict[int, list[tuple[list[int], int, int]]]:
    found: dict[int, list[tuple[list[int], int, int]]] = {}
    for sequence_id, *row in (row for step in world.steps for row in step):
        found.setdefault(sequence_id, []).append(tuple(row))  # type: ignore[arg-type]
    return found


def started(*, pages: int = 8, most: int = 8) -> tuple[Scheduler, Result]:
    """Two texts with a token each, and the result of the step that gave them their second ones."""
    facts = MockRunner(Profile(), page_tokens=4, pages=pages).facts
    scheduler = Scheduler(limits_of(facts, method="naive", max_sequences=most))
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


def running() -> tuple[Scheduler, Result]:
    """A step runs, behind which the next one is made ahead."""
    scheduler, result = started()
    scheduler.handle(StepDone(result))
    scheduler.schedule()
    scheduler.place()
    return scheduler, result


def test_those_that_wait_join_a_step_that_is_made_ahead_with_their_prompts() -> None:
    scheduler, result = running()
    scheduler.handle(Arrived(request([105, 106, 107], max_tokens=3), 3))
    ahead = scheduler.ahead()
    assert ahead is not None and ahead.fed == [0, 1] and [item.sequence_id for item in ahead.items] == [1, 2, 3]
    assert [new.sequence_id for new in ahead.new] == [3] and ahead.items[2].tokens == [105, 106, 107]
    assert [item.sequence.sequence_id for item in scheduler.joined] == [3]
    scheduler.saw(result)
    behind = scheduler.ahead()
    assert behind is not None and behind.fed == [0, 1, 2] and behind.items[2].start == 3
    assert scheduler.joined == [] and behind.new == []
    scheduler.handle(StepDone(result))
    scheduler.saw(Result([Verdict([104], 0), Verdict([105], 0), Verdict([2], 0)]))
    last = scheduler.ahead()
    # What it was given ends its text.
    assert last is not None and last.fed == [0, 1]


@pytest.mark.parametrize("more", [{"prompt_logprobs": 0}, {"grammar": "g"}])
def test_behind_one_that_does_not_just_go_on_the_next_step_is_planned(more: dict[str, object]) -> None:
    scheduler, result = running()
    scheduler.handle(Arrived(request([105, 106], max_tokens=3, **more), 3))
    assert scheduler.ahead() is not None and len(scheduler.joined) == 1
    scheduler.saw(result)
    assert scheduler.ahead() is None
    scheduler.handle(StepDone(result))
    assert scheduler.go_on(Result([Verdict([104], 0), Verdict([105], 0), Verdict([106], 0)])) is None


def test_a_prompt_that_is_longer_than_a_step_joins_with_its_first_chunk() -> None:
    facts = MockRunner(Profile(), page_tokens=4, pages=40).facts
    scheduler = Scheduler(limits_of(facts, method="naive", max_step_tokens=8))
    scheduler.handle(Arrived(request([100, 101], max_tokens=20), 1))
    scheduler.schedule()
    scheduler.place()
    scheduler.handle(Arrived(request([100 + k for k in range(20)], max_tokens=3), 2))
    ahead = scheduler.ahead()
    assert ahead is not None and [len(item.tokens) for item in ahead.items] == [1, 7]
    assert [item.verify for item in ahead.items] == [True, False]
    scheduler.saw(Result([Verdict([103], 0)]))
    assert scheduler.ahead() is None
    scheduler.handle(StepDone(Result([Verdict([103], 0)])))
    scheduler.handle(StepDone(Result([Verdict([104], 0), None])))
    scheduler.schedule()
    assert [(item.sequence_id, item.start) for item in scheduler.place().items] == [(1, 3), (2, 7)]


def test_the_runner_hears_of_an_end_once_no_step_that_it_is_in_runs() -> None:
    scheduler, _ = running()
    assert scheduler.ahead() is not None
    failed = Result([Verdict([], 0, failure="it fails"), Verdict([104], 0)])
    scheduler.saw(failed)
    scheduler.handle(StepDone(failed))
    # The step that runs has a row of the one that has failed.
    behind = scheduler.ahead()
    assert behind is not None and behind.ended == [] and [item.sequence_id for item in behind.items] == [2]
    scheduler.saw(Result([Verdict([105], 0), Verdict([106], 0)]))
    last = scheduler.ahead()
    assert last is not None and last.ended == [1]


def test_those_at_their_limit_hold_up_no_step_though_their_ends_are_not_known() -> None:
    """As in the engine, a result is taken once the step behind the next one is made."""
    scheduler = Scheduler(limits_of(MockRunner(Profile(), page_tokens=4, pages=20).facts, method="naive"))
    for sequence_id, most in ((1, 4), (2, 9)):
        scheduler.handle(Arrived(request([100 + sequence_id, 101], max_tokens=most), sequence_id))
    scheduler.schedule()
    scheduler.place()
    sizes, untaken = [2], None
    while (ahead := scheduler.ahead()) is not None:
        if untaken is not None:
            scheduler.handle(StepDone(untaken))
        untaken = Result([Verdict([104], 0)] * sizes[-1])
        scheduler.saw(untaken)
        sizes.append(len(ahead.items))
    assert sizes == [2] * 4 + [1] * 5


@pytest.mark.parametrize("caller", ["", "another"])
def test_one_that_waits_for_a_place_holds_nothing_up_unless_somebody_gives_way_to_it(caller: str) -> None:
    scheduler, result = started(most=2)
    waits = msgspec.structs.replace(request([105], max_tokens=3), caller=caller)
    scheduler.handle(Arrived(waits, 3))
    following = scheduler.go_on(result)
    assert (following is None) == bool(caller)
    assert scheduler.planner.may_replace() == bool(caller)
    if following is None:
        scheduler.handle(StepDone(result))
        scheduler.schedule()
        assert [item.sequence_id for item in scheduler.place().items] == [1, 3]


def test_a_failed_sequence_is_planned_for() -> None:
    scheduler, result = started()
    result.verdicts[0] = Verdict([], 0, failure="it fails")
    assert scheduler.go_on(result) is None


def test_a_failed_sequence_has_one_row_too_many() -> None:
    scheduler, result = started()
    scheduler.handle(StepDone(result))
    scheduler.schedule()
    scheduler.place()
    ahead = scheduler.ahead()
    assert ahead is not None and ahead.fed == [0, 1]
    failed = Result([Verdict([], 0, failure="it fails"), Verdict([104], 0)])
    scheduler.saw(failed)
    behind = scheduler.ahead()
    assert behind is not None and [item.sequence_id for item in behind.items] == [2] and behind.fed == [1]
    assert isinstance(scheduler.handle(StepDone(failed))[0], Fail)
    out = scheduler.handle(StepDone(Result([Verdict([105], 0), Verdict([106], 0)])))
    assert [item.sequence_id for item in out] == [2]  # type: ignore[union-attr]


def test_behind_an_event_the_next_step_is_planned() -> None:
    """Once the one that was made ahead, whose sequence is gone, is over."""
    scheduler, result = started()
    scheduler.handle(StepDone(result))
    scheduler.schedule()
    scheduler.place()
    assert scheduler.ahead() is not None
    scheduler.saw(result)
    scheduler.handle(StepDone(result))
    scheduler.handle(Cancelled(1))
    assert scheduler.ahead() is None and scheduler.go_on(result) is None
    scheduler.handle(StepDone(result))
    scheduler.schedule()
    assert [item.sequence_id for item in scheduler.place().items] == [2]


def test_one_that_is_cancelled_while_a_planned_step_runs_gets_nothing_of_it() -> None:
    scheduler, result = running()
    scheduler.handle(Cancelled(1))
    assert scheduler.ahead() is None and scheduler.go_on(result) is None
    out = scheduler.handle(StepDone(result))
    assert [item.sequence_id for item in out] == [2]  # type: ignore[union-attr]
    scheduler.schedule()
    work = scheduler.place()
    assert [item.sequence_id for item in work.items] == [2] and work.ended == [1]


def test_without_free_pages_the_step_is_planned_and_preempts() -> None:
    scheduler, result = started(pages=4)
    while (work := scheduler.go_on(result)) is not None:
        scheduler.handle(StepDone(result))
    scheduler.handle(StepDone(result))
    assert work is None and scheduler.pages.available == 0
    scheduler.schedule()
    assert len(scheduler.place().items) == 1 and scheduler.preemptions == 1
