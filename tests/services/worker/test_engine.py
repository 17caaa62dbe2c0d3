"""The engine's thread: the order of a step, what it hands over, when it waits, and how it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from driving import request

from services.api.drafter import Draft
from services.worker import engine as module
from services.worker.deliveries import HANDED_OVER
from services.worker.engine import Engine
from services.worker.mail import ProposersMoved
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import DraftBudget, Drafted, Result, Size, Work
from services.worker.scheduling.events import Answer, Arrived, Cancelled, DrainBegan, Emit, Fail, Finish
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.planning import Plan, Planned
from services.worker.scheduling.scheduler import Scheduler

PATIENCE = 20.0  # seconds


class World:
    """An engine over the mock and drafts of the mock's cycle; deliveries lie here until the test takes them."""

    def __init__(
        self, runner: Any = None, *, eager: bool = True, drafting: bool = False, rests: bool = True, **limits: Any
    ) -> None:
        """`rests`: no step needs drafts."""
        self.runner = runner or MockRunner(Profile())
        limits = {"method": "ngram" if drafting else "naive", **limits}
        self.scheduler = Scheduler(limits_of(self.runner.facts, **limits))
        self.deliveries: list[list[Answer]] = []
        self.failures: list[str] = []
        self.moves: list[Any] = []
        self.steps: list[tuple[int, float]] = []
        self.recorded: list[tuple[Work, Result]] = []
        self.calls: list[str] = []
        # By step that others have joined: they, and all.
        self.let_in: list[tuple[list[int], int]] = []
        self.changed = threading.Condition()
        self.eager = eager
        self.drafting = drafting
        self.rests = rests and not drafting
        # Of the worker's head, of all sequences.
        self.budget = 0
        self.closed = False
        self.told = self.told_unheard = 0
        self.engine = Engine(
            self.scheduler,
            self.runner,
            self,  # type: ignore[arg-type]
            deliver=self.deliver,
            failed=lambda message: self.noted(self.failures, message),
            now=time.monotonic,
            observe=lambda rows, seconds: self.noted(self.steps, (rows, seconds)),
            record=lambda work, result: self.recorded.append((work, result)),
        )
        self.engine.start()

    def noted(self, notes: list[Any], note: Any) -> None:
        with self.changed:
            notes.append(note)
            self.changed.notify_all()

    def deliver(self, answers: list[Answer]) -> None:
        self.noted(self.deliveries, answers)
        self.calls.append("emit")
        if self.eager:
            self.engine.answers.taken()

    # As the guarded controller ---------------------------------------------------------------------------

    def rest(self) -> bool:
        return self.rests

    def draft(self, plan: Plan) -> tuple[dict[int, Draft], dict[int, DraftBudget]]:
        self.calls.append("draft")
        drafts: dict[int, Draft] = {}
        for item in plan.items if self.drafting else ():
            if item.drafts:
                last = item.sequence.token_ids[-1]
                drafts[item.sequence.sequence_id] = Draft([100 + (last - 99 + place) % 32 for place in range(8)], "t")
        return drafts, {item.sequence.sequence_id: DraftBudget(self.budget) for item in plan.items if self.budget}

    def joined(self, items: list[Planned], count: int) -> None:
        self.let_in.append(([item.sequence.sequence_id for item in items], count))

    def ask_beside(self, work: Work) -> None:
        self.calls.append("ask beside")

    def take_head(self, work: Work, drafted: Drafted) -> None:
        self.calls.append("take head")

    def ask_ahead(self, work: Work) -> None:
        self.calls.append("ask ahead")

    def commit(self, work: Work, result: Result) -> None:
        self.calls.append("commit")

    def learn(self, work: Work, result: Result, size: Size) -> None:
        self.calls.append("learn")

    def forget(self, sequence: Any, learn: bool) -> None:
        self.calls.append("forget")

    def check_idle(self) -> None: ...

    def move_to(self, endpoint: str) -> None:
        self.noted(self.moves, endpoint)

    def tell(self) -> bool:
        with self.changed:
            self.told += 1
            self.changed.notify_all()
            return self.told < self.told_unheard

    def close(self) -> None:
        self.closed = True

    # What came of it ---------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE)

    def ends(self) -> list[Any]:
        return [item for delivery in self.deliveries for item in delivery if isinstance(item, Finish | Fail)]

    def ids(self, sequence_id: int) -> list[int]:
        emits = [item for delivery in self.deliveries for item in delivery if isinstance(item, Emit)]
        return [token for item in emits if item.sequence_id == sequence_id for token in item.tokens.ids]

    def stop(self) -> None:
        self.engine.stop()
        assert self.engine.join(PATIENCE) and self.closed


class TellingRunner(MockRunner):
    """Says in which order it is called."""

    def __init__(self, profile: Profile | None = None) -> None:
        super().__init__(profile or Profile())
        self.calls: list[str] = []
        self.go = threading.Event()
        self.heads: tuple[str, ...] = ()

    @property
    def drafters(self) -> tuple[str, ...]:
        return self.heads

    def draft(self) -> Drafted:
        self.calls.append("head")
        return super().draft()

    def launch(self, work: Work) -> None:
        assert self.go.wait(PATIENCE)
        self.calls.append("launch")
        super().launch(work)

    def finish(self) -> Result:
        self.calls.append("finish")
        return super().finish()


def test_a_steps_tokens_go_out_while_the_next_one_runs_and_the_last_ones_at_once() -> None:
    runner = TellingRunner()
    world = World(runner, rests=False)
    runner.calls = world.calls
    world.engine.post(Arrived(request(max_tokens=3), 1))
    runner.go.set()
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    step = ["draft", "launch", "emit", "learn", "ask ahead", "finish", "commit"]
    first = [call for call in step if call not in ("emit", "learn")]
    assert world.calls == [*first, *step, *step, "forget", "emit", "learn"]


def test_beside_a_head_that_drafts_nothing_a_step_is_launched_before_the_last_one_is_committed() -> None:
    """The head is told of each."""
    runner = TellingRunner()
    runner.heads = ("toy",)
    world = World(runner)
    runner.calls = world.calls
    world.engine.post(Arrived(request(max_tokens=3), 1))
    runner.go.set()
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    finish = ["finish", "head"]
    planned = ["draft", "launch", "ask ahead", *finish]
    goes_on = ["launch", "commit", "emit", "learn", "ask ahead", *finish]
    assert world.calls == [*planned, *goes_on, *goes_on, "commit", "forget", "emit", "learn"]


def test_where_nothing_is_drafted_the_next_step_is_launched_before_the_running_one_ends() -> None:
    runner = TellingRunner()
    world = World(runner)
    runner.calls = world.calls
    world.engine.post(Arrived(request(max_tokens=4), 1))
    runner.go.set()
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    planned = ["draft", "launch", "ask ahead", "launch", "finish"]
    fed = ["launch", "commit", "emit", "learn", "ask ahead", "finish"]
    assert world.calls == [*planned, *fed, *fed, *fed[1:], "commit", "forget", "emit", "learn"]
    assert [work.items[0].tokens[-1:] for work, _ in world.recorded[1:]] == [[token] for token in world.ids(1)[:-1]]
    assert not any(work.fed for work, _ in world.recorded), "a record has the tokens"


def test_a_request_that_arrives_joins_a_step_that_is_made_ahead() -> None:
    """Only the first step is planned. The controller is told, so that it may look for drafts."""
    world = World()
    world.engine.post(Arrived(request(max_tokens=3000), 1))
    world.until(lambda: len(world.ids(1)) > 5)
    world.engine.post(Arrived(request([110, 111, 112], max_tokens=20), 2))
    world.until(lambda: len(world.ends()) == 2)
    world.stop()
    world.scheduler.check_idle()
    assert world.calls.count("draft") == 1 and world.let_in == [([2], 2)]
    alone = World()
    alone.engine.post(Arrived(request([110, 111, 112], max_tokens=20), 2))
    alone.until(lambda: len(alone.ends()) == 1)
    alone.stop()
    assert world.ids(2) == alone.ids(2)
    [joined] = [work for work, _ in world.recorded if work.new and len(work.items) == 2]
    assert joined.items[1].tokens == [110, 111, 112] and not joined.fed


def test_the_last_row_of_texts_that_have_ended_is_computed_and_counts_for_nothing() -> None:
    """All of them end with a stop id, so that a step runs on which nobody waits."""
    runner = TellingRunner(Profile(acceptance=0.5, eos_every=10))
    world = World(runner)
    for sequence_id in (1, 2, 3):
        world.engine.post(Arrived(request([100 + sequence_id], max_tokens=300, ignore_eos=False), sequence_id))
    runner.go.set()
    world.until(lambda: len(world.ends()) == 3)
    world.engine.post(Arrived(request([110], max_tokens=2), 4))
    world.until(lambda: len(world.ends()) == 4)
    world.stop()
    world.scheduler.check_idle()
    ends = {end.sequence_id: end.finished for end in world.ends()}
    assert [ends[sequence_id].reason for sequence_id in (1, 2, 3)] == ["stop"] * 3
    assert all(ends[each].completion_tokens == len(world.ids(each)) for each in ends)
    rows = sum(item.verify for work, _ in world.recorded for item in work.items)
    given = sum(len(world.ids(each)) + (ends[each].reason == "stop") for each in ends)
    assert rows > given


def test_a_head_that_drafts_does_so_between_a_steps_tokens_and_the_next_step() -> None:
    runner = TellingRunner()
    runner.heads = ("toy",)
    world = World(runner, rests=False)
    world.budget = 2
    runner.calls = world.calls
    world.engine.post(Arrived(request(max_tokens=2), 1))
    runner.go.set()
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    step = ["draft", "launch", "ask ahead", "finish", "commit", "emit", "learn", "ask beside", "head", "take head"]
    assert world.calls == [*step, *step[:5], "forget", *step[5:]]


def test_where_nothing_is_drafted_texts_are_those_of_planned_steps_and_mail_is_heard() -> None:
    def texts(rests: bool) -> list[list[int]]:
        runner = TellingRunner(Profile(acceptance=0.5, eos_every=40))
        world = World(runner, rests=rests)
        for sequence_id in range(1, 9):
            world.engine.post(Arrived(request([100 + sequence_id], max_tokens=20 * sequence_id), sequence_id))
        runner.go.set()
        world.until(lambda: bool(world.ids(8)))
        world.engine.post(Arrived(request([110], max_tokens=30), 9))
        world.engine.post(Cancelled(7))
        world.until(lambda: len({end.sequence_id for end in world.ends()} - {7}) == 8)
        world.stop()
        world.scheduler.check_idle()
        return [world.ids(sequence_id) for sequence_id in (1, 2, 3, 4, 5, 6, 8, 9)]

    assert texts(True) == texts(False)


def test_the_answers_of_a_step_are_delivered_in_one_call() -> None:
    world = World()
    for sequence_id in range(8):
        world.engine.post(Arrived(request([100 + sequence_id], max_tokens=50), sequence_id))
    world.until(lambda: len(world.ends()) == 8)
    assert all(len(world.ids(sequence_id)) == 50 for sequence_id in range(8))
    assert len(world.deliveries) < 8 * 50 / 2
    world.stop()


def test_drafts_save_steps_and_change_no_token() -> None:
    plain, drafted = World(), World(drafting=True)
    for world in (plain, drafted):
        world.engine.post(Arrived(request(max_tokens=200), 1))
        world.until(lambda world=world: len(world.ends()) == 1)  # type: ignore[misc]
        world.stop()
    assert plain.ids(1) == drafted.ids(1)
    assert len(drafted.steps) < len(plain.steps) / 2


def test_pages_are_copied_in_the_step_that_needs_them_and_every_step_is_observed_and_recorded() -> None:
    runner = TellingRunner()
    world = World(runner)
    prompt = [100 + k % 32 for k in range(50)]
    for sequence_id in (1, 2):
        world.engine.post(Arrived(request(prompt, max_tokens=500), sequence_id))
    runner.go.set()
    world.until(lambda: len(world.ends()) == 2)
    assert world.ids(1) == world.ids(2)
    copies = [work.copies for work, _ in world.recorded]
    assert copies[0] == [] and sum(map(len, copies)) == 1
    assert [sum(item.rows for item in work.items) for work, _ in world.recorded] == [rows for rows, _ in world.steps]
    world.stop()


def test_it_sleeps_when_there_is_nothing_to_do() -> None:
    world = World()
    world.engine.post(Arrived(request(max_tokens=3), 1))
    world.until(lambda: len(world.ends()) == 1)
    steps = len(world.steps)
    world.engine.post(ProposersMoved({"proposer-1": ("ipc://x", 1)}))
    world.until(lambda: world.moves == [{"proposer-1": ("ipc://x", 1)}])
    assert len(world.steps) == steps and world.engine.progress_age() == 0.0
    world.stop()


def test_an_idle_engine_repeats_unconfirmed_ends_to_the_proposer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TELL_AGAIN", 0.005)
    world = World()
    world.until(lambda: world.told > 0)
    world.told_unheard = world.told + 4
    world.engine.post(Arrived(request(max_tokens=3), 1))
    world.until(lambda: world.told >= world.told_unheard)
    assert len(world.ends()) == 1
    world.stop()


def test_an_engine_whose_deliveries_are_not_taken_waits() -> None:
    world = World(eager=False)
    world.engine.post(Arrived(request(max_tokens=8000), 1))
    world.until(lambda: len(world.deliveries) == HANDED_OVER)
    assert len(world.ids(1)) < 8000 and not world.ends()
    world.eager = True
    for _ in range(HANDED_OVER):
        world.engine.answers.taken()
    world.until(lambda: len(world.ends()) == 1)
    assert len(world.ids(1)) == 8000
    world.stop()


def test_an_engine_waiting_to_deliver_can_be_stopped() -> None:
    world = World(eager=False)
    world.engine.post(Arrived(request(max_tokens=8000), 1))
    world.until(lambda: len(world.deliveries) == HANDED_OVER)
    world.stop()


def test_a_deadline_passes_while_others_run() -> None:
    world = World(MockRunner(Profile(step_ms=2.0)))
    world.engine.post(Arrived(request(max_tokens=8000), 1, time.monotonic() + 0.05))
    world.engine.post(Arrived(request(max_tokens=60), 2))
    world.until(lambda: len(world.ends()) == 2)
    first, second = sorted(world.ends(), key=lambda end: end.sequence_id)
    assert (first.sequence_id, first.failed.reason) == (1, "deadline")
    assert second.finished.completion_tokens == 60
    world.stop()


def test_a_deadline_that_has_passed_when_the_request_comes_ends_it_before_a_step() -> None:
    world = World()
    world.engine.post(Arrived(request(max_tokens=8000), 1, time.monotonic() - 1.0))
    world.until(lambda: len(world.ends()) == 1)
    assert world.ends()[0].failed.reason == "deadline" and not world.steps
    world.stop()


def test_a_failing_runner_fails_each_running_and_later_request_once() -> None:
    world = World(MockRunner(Profile(crash_every=5)))
    for sequence_id in (1, 2):
        world.engine.post(Arrived(request(max_tokens=100), sequence_id))
    world.until(lambda: len(world.ends()) == 2 and bool(world.failures))
    assert {(end.sequence_id, end.failed.reason, end.failed.retryable) for end in world.ends()} == {
        (1, "engine", True),
        (2, "engine", True),
    }
    assert "MockFailure" in world.failures[0]
    world.engine.post(Arrived(request(max_tokens=100), 3))
    world.until(lambda: len(world.ends()) == 3)
    world.stop()


def test_progress_has_an_age_while_a_step_hangs() -> None:
    release = threading.Event()
    world = World(MockRunner(Profile(step_ms=1.0), sleep=lambda seconds: release.wait(PATIENCE) and None))
    world.engine.post(Arrived(request(max_tokens=2), 1))
    before = time.monotonic()
    while world.engine.progress_age() < 0.02:
        assert time.monotonic() - before < PATIENCE
        time.sleep(0.001)
    release.set()
    world.until(lambda: len(world.ends()) == 1)
    world.stop()


def test_a_cancelled_request_makes_room_at_once() -> None:
    world = World(MockRunner(Profile(step_ms=1.0)), max_sequences=1)
    world.engine.post(Arrived(request(max_tokens=8000), 1))
    world.engine.post(Arrived(request(max_tokens=2), 2))
    world.until(lambda: bool(world.ids(1)))
    world.engine.post(Cancelled(1))
    world.until(lambda: len(world.ends()) == 1)
    assert world.ends()[0].sequence_id == 2
    world.stop()


def test_a_worker_that_drains_refuses_what_comes_and_finishes_what_runs() -> None:
    world = World(MockRunner(Profile(step_ms=1.0)))
    world.engine.post(Arrived(request(max_tokens=30), 1))
    world.until(lambda: bool(world.ids(1)))
    world.engine.post(DrainBegan())
    world.engine.post(Arrived(request(max_tokens=30), 2))
    world.until(lambda: len(world.ends()) == 2)
    by_sequence = {end.sequence_id: end for end in world.ends()}
    assert by_sequence[2].failed.reason == "draining" and by_sequence[1].finished.completion_tokens == 30
    world.stop()
