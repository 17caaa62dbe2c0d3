"""A rehearsal: when it walks, what it leaves alone, and that nobody notices when it fails."""

from __future__ import annotations

import gc
import logging
import random
import sys
from collections.abc import Sequence as Items

import pytest
from driving import limits_of
from mesh_around import request
from prometheus_client import REGISTRY, generate_latest

from services.api.drafts import DraftItem
from services.worker.engine import StepLoop
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.runner import Meanwhile, StepWork, Verdict, nothing_meanwhile
from services.worker.scheduling.events import (
    Arrived,
    AskAhead,
    AskDrafts,
    DraftAsk,
    Event,
    Foresee,
    Instruction,
    RunStep,
)
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation import rehearsal
from services.worker.speculation.advice import AdvisedBy
from services.worker.speculation.rehearsal import AGAIN, FEW, LEAD_SHARE, STEPS, WAKING, Play, Rehearsal
from services.worker.speculation.stage import StepStage
from tests.laws.step_loop_bench import DraftsBy, draft

STEP = 0.005
WALK = 0.0001
# Of all the walks that are meant to be, before the end.
LEAD = 1 + AGAIN


class Clock:
    def __init__(self) -> None:
        self.moment = 100.0

    def now(self) -> float:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += seconds


class Walked:
    """A stage that notes when it was walked over, which takes a while."""

    def __init__(self, clock: Clock, takes: float = WALK) -> None:
        self.clock = clock
        self.takes = takes
        self.prepared = 0
        self.at: list[float] = []
        self.fault: Exception | None = None

    def prepare(self) -> None:
        self.prepared += 1

    def walk(self) -> None:
        if self.fault is not None:
            raise self.fault
        self.at.append(self.clock.now())
        self.clock.sleep(self.takes)


class Line:
    """A proposer's, which notes what it is told."""

    def __init__(self) -> None:
        self.expecting = False
        self.said: list[str] = []

    def expects(self) -> bool:
        return self.expecting

    def rehearse(self) -> None:
        self.said.append("rehearse")

    def rehearsed(self) -> bool:
        self.said.append("rehearsed")
        return True


class Steps:
    """Steps that a clock takes, with a rehearsal while they run."""

    def __init__(self, takes: float = WALK) -> None:
        self.clock = Clock()
        self.stage = Walked(self.clock, takes)
        self.made: list[Play] = []
        self.looks = 0
        self.line = Line()
        self.rehearsal = Rehearsal(self.make, self.look, self.line, self.clock.now, self.clock.sleep)

    def make(self, play: Play) -> Walked:
        self.made.append(play)
        return self.stage

    def look(self) -> None:
        self.looks += 1

    def run(self, seconds: float = STEP, predicted: float = STEP, drafts: bool = True) -> float:
        """One step; how much longer it took for the rehearsal."""
        began = self.clock.now()
        end = began + seconds
        waiting = self.rehearsal.prepare(began, predicted, drafts)
        if waiting is not None:
            waiting(lambda: self.clock.now() >= end)
        late = max(0.0, self.clock.now() - end)
        self.clock.moment = max(end, self.clock.moment)
        self.rehearsal.learn(seconds)
        return late

    def settle(self) -> None:
        """What is known of steps and walks."""
        for _ in range(50):
            self.run()
        self.stage.at.clear()


def test_it_walks_up_to_the_end_of_a_step() -> None:
    steps = Steps()
    steps.settle()
    end = steps.clock.now() + STEP
    assert steps.run() == 0.0
    begin = end - LEAD * WALK - WAKING
    assert steps.stage.at[:3] == pytest.approx([begin, begin + WALK, begin + 2 * WALK], abs=WALK / 5)
    # As long as there is time for one more.
    assert len(steps.stage.at) >= LEAD and end - 2.1 * WALK <= steps.stage.at[-1] <= end - WALK + 1e-9


def test_where_no_time_passes_there_is_an_end_to_walking() -> None:
    steps = Steps(takes=0.0)
    steps.settle()
    steps.run()
    assert len(steps.stage.at) == 1 + rehearsal.MOST_AGAIN


def test_a_step_that_ends_earlier_than_expected_ends_a_walk_between_its_pieces() -> None:
    steps = Steps()
    steps.settle()
    steps.line.expecting = True
    steps.run()
    steps.line.said.clear()
    steps.stage.at.clear()
    # In the middle of the first walk.
    late = steps.run(seconds=STEP - LEAD * WALK - WAKING + WALK / 2)
    assert 0.0 < late <= WALK and len(steps.stage.at) == 1
    assert steps.line.said == ["rehearse"]


def test_where_steps_wait_for_drafts_the_proposer_walks_along() -> None:
    steps = Steps()
    steps.settle()
    assert steps.line.said == [] and steps.made == ["stands"]
    steps.line.expecting = True
    steps.run()
    assert steps.made == ["stands", "falls"]
    assert steps.line.said == ["rehearse", "rehearsed"] * len(steps.stage.at) != []
    steps.line.said.clear()
    steps.run(drafts=False)
    assert steps.line.said == [], "nobody would ask"


def test_after_a_walk_the_next_step_is_looked_at() -> None:
    steps = Steps()
    for _ in range(50):
        steps.run()
    assert steps.looks == len(steps.stage.at) > 3 * 30


def test_what_walks_take_is_learned() -> None:
    steps = Steps(takes=3 * WALK)
    # Some of the first ones come too late, and that is remembered for a while.
    for _ in range(300):
        steps.run(3 * STEP, 3 * STEP)
    steps.stage.at.clear()
    end = steps.clock.now() + 3 * STEP
    assert steps.run(3 * STEP, 3 * STEP) == 0.0
    assert steps.stage.at[0] == pytest.approx(end - LEAD * 3 * WALK - WAKING, abs=WALK)


def test_nothing_is_expected_of_the_first_steps() -> None:
    steps = Steps()
    for _ in range(FEW):
        steps.run()
    assert not steps.made and not steps.stage.at
    steps.run()
    assert steps.made == ["stands"] and steps.stage.at


def test_as_long_as_no_prediction_is_there_nothing_is_learned() -> None:
    steps = Steps()
    for _ in range(50):
        steps.run(predicted=0.0)
    assert not steps.made


def test_short_steps_are_left_alone() -> None:
    steps = Steps(takes=1e-6)
    for _ in range(500):
        steps.run(seconds=0.0009, predicted=0.0009)
    assert not steps.made


def test_walks_that_are_long_for_the_step_are_hardly_made() -> None:
    steps = Steps(takes=0.002)
    for _ in range(300):
        steps.run(seconds=0.004, predicted=0.004)
    assert 0 < len(steps.stage.at) < 300 / 5
    # When the machine is less busy, they are made again.
    steps.stage.takes = WALK
    for _ in range(100):
        steps.run(seconds=0.004, predicted=0.004)
    steps.stage.at.clear()
    steps.run(seconds=0.004, predicted=0.004)
    assert steps.stage.at


@pytest.mark.parametrize("takes", [4 * WALK, 6 * WALK, 8 * WALK])
def test_of_a_step_only_so_much_is_walked_in(takes: float) -> None:
    """However long a walk takes, as long as there is time for one."""
    steps = Steps(takes=takes)
    for _ in range(6):
        steps.settle()
    began = steps.clock.now()
    assert steps.run() == 0.0
    assert steps.stage.at[0] >= began + (1.0 - LEAD_SHARE) * STEP - 1e-9


class Asked(Line):
    """A proposer that takes a while to answer."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.expecting = True
        self.asked: list[float] = []

    def rehearse(self) -> None:
        super().rehearse()
        self.asked.append(self.clock.now())

    def rehearsed(self) -> bool:
        super().rehearsed()
        self.clock.sleep(WALK / 20)
        return self.clock.now() >= self.asked[-1] + WALK / 4


def test_where_there_is_time_for_less_than_a_walk_the_proposer_is_asked_alone() -> None:
    steps = Steps(takes=4 * WALK)
    steps.line = steps.rehearsal._line = line = Asked(steps.clock)
    for _ in range(4):
        steps.settle()
    line.asked.clear()
    line.said.clear()
    end = steps.clock.now() + STEP
    assert steps.run() == 0.0
    alone = [moment for moment in line.asked if moment > steps.stage.at[-1]]
    assert len(alone) >= 3 and len(line.asked) == len(alone) + len(steps.stage.at)
    # Up to the end, and looked at until it is there.
    assert end - WALK <= alone[-1] <= end
    assert line.said.count("rehearsed") > 2 * len(alone)


def test_an_answer_that_never_comes_is_looked_for_so_often_and_no_more() -> None:
    # Three of them, and time for questions is left.
    steps = Steps(takes=5.5 * WALK)
    steps.line.expecting = True
    for _ in range(4):
        steps.settle()
    steps.line.rehearsed = lambda: steps.line.said.append("rehearsed") or False  # type: ignore[method-assign, func-returns-value]
    steps.line.said.clear()
    steps.run()
    questions = steps.line.said.count("rehearse")
    assert questions < steps.line.said.count("rehearsed") <= questions * rehearsal.MOST_LOOKS


def test_nobody_walks_when_steps_end_unexpectedly() -> None:
    steps = Steps()
    for _ in range(STEPS):
        steps.run(seconds=STEP)
        steps.run(seconds=2 * STEP)
    steps.stage.at.clear()
    assert steps.run() == 0.0
    assert not steps.stage.at


def test_a_step_in_a_hundred_that_is_short_or_long_changes_nothing() -> None:
    steps = Steps()
    steps.settle()
    steps.run(seconds=0.4 * STEP)
    steps.run(seconds=10 * STEP)
    steps.stage.at.clear()
    end = steps.clock.now() + STEP
    assert steps.run() == 0.0
    assert steps.stage.at[0] == pytest.approx(end - LEAD * WALK - WAKING, abs=WALK / 10)


def test_where_some_are_shorter_than_others_the_short_ones_are_waited_for() -> None:
    steps = Steps()
    steps.settle()
    for place in range(STEPS):
        steps.run(seconds=STEP * (0.9 if place % 4 == 0 else 1.0))
    end = steps.clock.now() + 0.9 * STEP
    steps.stage.at.clear()
    steps.run()
    assert steps.stage.at[0] == pytest.approx(end - LEAD * WALK - WAKING, abs=WALK / 10)


def test_a_step_that_ends_early_isnt_kept_waiting_for_long() -> None:
    steps = Steps()
    steps.settle()
    assert steps.run(seconds=0.0021) <= rehearsal.NAP
    assert not steps.stage.at


def test_who_wakes_too_late_walks_no_more() -> None:
    steps = Steps()
    steps.settle()
    end = steps.clock.now() + STEP
    # Before the end, but not by as much as a walk takes.
    steps.rehearsal._sleep = lambda seconds: steps.clock.sleep(end - WALK / 2 - steps.clock.now())
    assert steps.run() == 0.0
    assert not steps.stage.at


def test_on_a_machine_that_wakes_late_now_and_then_walks_begin_sooner() -> None:
    steps = Steps()
    steps.settle()
    asleep, chance = steps.clock.sleep, random.Random(3)
    steps.rehearsal._sleep = lambda seconds: asleep(seconds + (chance.random() < 0.03) * 6 * WALK)
    late = [steps.run() for _ in range(1000)]
    # It is rare from then on, not impossible.
    assert sum(each > 0 for each in late[500:]) <= 0.4 * 500 * 0.03
    # And when the machine is its old self, they begin as late as they did.
    steps.rehearsal._sleep = asleep
    for _ in range(1000):
        steps.run()
    end = steps.clock.now() + STEP
    steps.stage.at.clear()
    steps.run()
    assert steps.stage.at[0] == pytest.approx(end - LEAD * WALK - WAKING, abs=WALK / 10)


def test_where_it_took_most_of_the_step_to_send_it_on_its_way_nothing_is_begun() -> None:
    steps = Steps()
    steps.settle()
    prepared = steps.stage.prepared
    waiting = steps.rehearsal.prepare(steps.clock.now(), STEP, True)
    assert waiting is not None and steps.stage.prepared == prepared
    steps.clock.sleep(STEP - LEAD * WALK - WAKING + WALK / 100)
    waiting(lambda: False)
    assert steps.stage.prepared == prepared and not steps.stage.at


def test_with_drafts_and_without_there_is_a_stage_for_each() -> None:
    steps = Steps()
    for drafts in (True, False) * 20:
        steps.run(drafts=drafts)
    assert sorted(steps.made) == ["plain", "stands"]


def test_a_fault_ends_it_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps()
    steps.settle()
    steps.stage.fault = RuntimeError("the stage")
    with caplog.at_level(logging.ERROR, "specmesh.worker"):
        for _ in range(3):
            steps.run()
    assert [record.message for record in caplog.records] == ["rehearsing failed: steps go on without it"]
    prepared = steps.stage.prepared
    steps.run()
    assert steps.stage.prepared == prepared


# The stage itself -----------------------------------------------------------------------------------------

PLAYS: tuple[Play, ...] = ("plain", "stands", "falls")


@pytest.mark.parametrize("play", PLAYS)
def test_on_the_stage_drafts_stand_and_fall_as_they_are_meant_to(play: Play) -> None:
    stage = StepStage(play)
    for _ in range(20):
        stage.prepare()
        stage.walk()
    ways = dict(stage.scheduler.drafting.counts.ways)
    for _ in range(60):
        stage.prepare()
        stage.walk()
    more = {way: count - ways[way] for way, count in stage.scheduler.drafting.counts.ways.items()}
    if play == "plain":
        assert not any(more.values())
    elif play == "stands":
        # Nobody waits for a draft between two steps.
        assert more == {"lease": more["lease"], "ahead": 60 - more["lease"], "asked": 0, "none": 0}
    else:
        assert more["asked"] > 30


@pytest.mark.parametrize("play", PLAYS)
def test_ten_thousand_rehearsals_keep_no_more_than_two_thousand(play: Play) -> None:
    stage = StepStage(play)

    def run(times: int) -> int:
        for _ in range(times):
            stage.prepare()
            stage.walk()
        # To the end of a text, so that the same is there.
        while stage.scheduler.has_work:
            stage.prepare()
            stage.walk()
        gc.collect()
        return len(gc.get_objects()) + sys.getallocatedblocks()

    before = run(2000)
    assert run(8000) <= before * 1.02


def test_nothing_of_it_is_counted_or_said(caplog: pytest.LogCaptureFixture) -> None:
    before, state = _counted(), random.getstate()
    with caplog.at_level(logging.DEBUG):
        for play in PLAYS:
            stage = StepStage(play)
            for _ in range(500):
                stage.prepare()
                stage.walk()
            # Nor does anybody rehearse there.
            assert not stage._rehearsal._stages
    assert not caplog.records
    assert _counted() == before and random.getstate() == state


def _counted() -> list[bytes]:
    return [line for line in generate_latest(REGISTRY).splitlines() if b"specmesh" in line]


# In a step loop -------------------------------------------------------------------------------------------


class Noted(Scheduler):
    """Keeps what it was told, and what it said to that."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.notes: list[str] = []

    def handle(self, event: Event) -> list[Instruction]:
        instructions = super().handle(event)
        # What may come of a draft is thought of once more before a step's end.
        if not isinstance(event, Foresee):
            self.notes.append(f"{type(event).__name__} {[_told(each) for each in instructions]}")
        return instructions


def _told(instruction: Instruction) -> str:
    if isinstance(instruction, RunStep):
        return str([(item.sequence.id, item.tokens, item.start, item.draft, item.parents) for item in instruction.work])
    if isinstance(instruction, AskDrafts | AskAhead):
        return str([(ask.sequence.id, ask.budget, ask.ahead) for ask in instruction.asks])
    return str(instruction)


def mostly_right(ask: DraftAsk) -> DraftItem:
    """Knows the mock's cycle, and is wrong now and then."""
    text = [*ask.sequence.token_ids, *ask.ahead]
    wrong = random.Random(len(text)).randrange(40)
    tokens = [100 + (text[-1] - 99 + place + (place >= wrong)) % 32 for place in range(ask.budget)]
    return draft(ask, tokens, chances=[0.9] * len(tokens))


class Whole:
    """A step loop on a clock of its own, from its first request to its last."""

    def __init__(self, runner: type[MockRunner] = MockRunner, line: DraftsBy | None = None) -> None:
        self.moment = 0
        self.runner = runner(Profile(step_ms=5.0, row_us=50.0, acceptance=0.95), now=self.now, sleep=self.sleep)
        self.scheduler = Noted(limits_of(self.runner, method="auto", max_sequences=3, pages=40))
        self.failures: list[str] = []
        self.loop = StepLoop(
            self.scheduler,
            self.runner,
            AdvisedBy(self.scheduler.advice, line or DraftsBy(mostly_right)),
            deliver=lambda delivery: self.loop.taken(),
            failed=self.failures.append,
            observer=self,
            now=self.now,
            sleep=self.sleep,
        )

    # In whole microseconds: what is slept in parts is as long as what is slept at once.
    def now(self) -> float:
        return self.moment / 1e6

    def sleep(self, seconds: float) -> None:
        self.moment += max(1, round(seconds * 1e6))

    def after_step(self, rows: int, seconds: float) -> None:
        if sum(self.scheduler.ends.values()) == self.requests:
            self.loop.stop()

    def run(self, requests: int = 9, prompt: list[int] | None = None) -> list[str]:
        self.requests = requests
        chance = random.Random(7)
        for stream in range(requests):
            method = chance.choice(["auto", "suffix", "naive"])
            generate = request(prompt, max_tokens=chance.randrange(60, 160), method=method, ignore_eos=True)
            self.loop.post(Arrived(generate, stream))
        self.loop.start()
        assert self.loop.join(60.0)
        return self.scheduler.notes


def test_a_step_loop_does_the_same_with_rehearsals_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed = Whole()
    with_it = rehearsed.run()
    assert rehearsed.loop._rehearsal.walks > 50
    monkeypatch.setattr(Rehearsal, "prepare", lambda self, began, predicted, drafts: None)
    assert Whole().run() == with_it
    assert not rehearsed.failures and len(with_it) > 300


class WalksAlong(DraftsBy):
    """A line to a proposer that steps wait for."""

    def __init__(self) -> None:
        super().__init__(mostly_right)
        self.rehearsals = 0

    def expects(self) -> bool:
        return True

    def rehearse(self) -> None:
        self.rehearsals += 1


def test_nor_does_it_do_anything_else_where_the_proposer_walks_along() -> None:
    line = WalksAlong()
    whole = Whole(line=line)
    assert whole.run() == Whole().run()
    assert line.rehearsals > 50 and not whole.failures


@pytest.mark.parametrize("fails", ["expects", "rehearse", "rehearsed"])
def test_a_fault_of_the_line_on_the_way_ends_drafting_and_no_request(fails: str) -> None:
    line = WalksAlong()

    def fault() -> bool:
        raise RuntimeError("a fault of ours")

    setattr(line, fails, fault)
    whole = Whole(line=line)
    whole.run()
    assert whole.scheduler.advice.failed and not whole.failures
    assert whole.scheduler.ends == {"length": 9}


def test_of_a_step_smaller_than_any_before_nothing_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[float] = []
    monkeypatch.setattr(Rehearsal, "prepare", lambda self, began, predicted, drafts: said.append(predicted))
    whole = Whole()
    # What its prompt took says nothing of the step behind it.
    whole.run(requests=1, prompt=[100] * 50)
    assert said[:2] == [0.0, 0.0] and said[2:] and min(said[2:]) > 0.0


class Here(MockRunner):
    """Computes in the step thread."""

    def step(self, work: Items[StepWork], meanwhile: Meanwhile = nothing_meanwhile) -> list[Verdict | None]:
        assert meanwhile(False) is None
        return super().step(work)


def test_steps_that_dont_run_elsewhere_are_left_alone() -> None:
    whole = Whole(Here)
    assert len(whole.run()) > 100 and not whole.failures
    assert not whole.loop._rehearsal.walks and not whole.loop._rehearsal._stages


@pytest.mark.parametrize("fails", ["prepare", "walk"])
def test_a_fault_on_the_stage_ends_no_request(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calm = Whole().run()

    def fault(self: StepStage) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(StepStage, fails, fault)
    whole = Whole()
    assert whole.run() == calm and not whole.failures and not whole.scheduler.advice.failed
    assert [record.message for record in caplog.records] == ["rehearsing failed: steps go on without it"]
