"""The thread that turns the wheel: what it hands over, when it waits, and how it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from driving import limits_of
from mesh_around import request

from services.messages import DraftItem
from services.target.events import (
    Arrived,
    Cancelled,
    DraftAsk,
    Emit,
    Fail,
    Finish,
)
from services.target.mock_runner import MockRunner, Profile
from services.target.scheduler import Scheduler
from services.target.step_loop import HANDED_OVER, Delivery, ProposerAt, StepLoop

PATIENCE = 20.0  # seconds


class World:
    """A loop over the mock; deliveries lie here until the test takes them."""

    def __init__(self, runner: Any = None, *, eager: bool = True, **limits: Any) -> None:
        self.runner = runner or MockRunner(Profile())
        self.scheduler = Scheduler(limits_of(self.runner, **{"method": "naive", **limits}))
        self.deliveries: list[Delivery] = []
        self.failures: list[str] = []
        self.moves: list[str] = []
        self.asked: list[list[DraftAsk]] = []
        self.steps: list[tuple[int, float]] = []
        self.changed = threading.Condition()
        self.eager = eager
        self.closed = False
        self.loop = StepLoop(
            self.scheduler,
            self.runner,
            self,
            deliver=self.deliver,
            failed=self.fail,
            observer=self,
            now=time.monotonic,
        )
        self.loop.start()

    def deliver(self, delivery: Delivery) -> None:
        with self.changed:
            self.deliveries.append(delivery)
            self.changed.notify_all()
        if self.eager:
            self.loop.taken()

    def fail(self, message: str) -> None:
        with self.changed:
            self.failures.append(message)
            self.changed.notify_all()

    def after_step(self, rows: int, seconds: float) -> None:
        self.steps.append((rows, seconds))

    # As the proposer's link: drafts the mock's cycle.

    def move_to(self, endpoint: str) -> None:
        with self.changed:
            self.moves.append(endpoint)
            self.changed.notify_all()

    def forget(self, sequence_ids: list[int]) -> None:
        pass

    def ask(self, asks: list[DraftAsk]) -> None:
        self.asked.append(asks)

    def rest(self) -> None: ...

    def collect(self) -> list[DraftItem]:
        return [
            DraftItem(
                sequence_id=ask.sequence.id,
                committed=ask.sequence.length,
                tokens=[100 + (ask.sequence.token_ids[-1] - 99 + i) % 32 for i in range(ask.budget)],
                source="t",
            )
            for ask in self.asked[-1]
        ]

    def close(self) -> None:
        self.closed = True

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE)

    def ends(self) -> list[Any]:
        return [item for delivery in self.deliveries for item in delivery if isinstance(item, Finish | Fail)]

    def ids(self, stream: int) -> list[int]:
        emits = [item for delivery in self.deliveries for item in delivery if isinstance(item, Emit)]
        return [token for item in emits if item.stream == stream for token in item.tokens.ids]

    def stop(self) -> None:
        self.loop.stop()
        assert self.loop.join(PATIENCE) and self.closed


def test_what_a_step_gave_for_all_is_handed_over_in_one_call() -> None:
    world = World()
    for stream in range(8):
        world.loop.post(Arrived(request(max_tokens=50), stream))
    world.until(lambda: len(world.ends()) == 8)
    assert all(len(world.ids(stream)) == 50 for stream in range(8))
    assert len(world.deliveries) < 8 * 50 / 2
    world.stop()


def test_drafts_are_asked_for_while_a_delivery_goes_out_and_used_in_the_next_step() -> None:
    plain, drafted = World(), World(method="ngram")
    for world in (plain, drafted):
        world.loop.post(Arrived(request(max_tokens=200), 1))
        world.until(lambda world=world: len(world.ends()) == 1)  # type: ignore[misc]
        world.stop()
    assert plain.asked == [] and drafted.asked
    assert plain.ids(1) == drafted.ids(1)
    assert len(drafted.steps) < len(plain.steps) / 2


class CopyingRunner(MockRunner):
    """Says in which order it is called."""

    def __init__(self) -> None:
        super().__init__(Profile())
        self.calls: list[str] = []
        self.go = threading.Event()

    def copy_page(self, source: int, target: int) -> None:
        self.calls.append("copy")

    def step(self, work: Any) -> Any:
        assert self.go.wait(PATIENCE)
        self.calls.append("step")
        return super().step(work)


def test_pages_are_copied_before_the_step_that_needs_them_and_step_times_are_learned() -> None:
    runner = CopyingRunner()
    world = World(runner)
    prompt = [100 + k % 32 for k in range(50)]
    for stream in (1, 2):
        world.loop.post(Arrived(request(prompt, max_tokens=500), stream))
    runner.go.set()
    world.until(lambda: len(world.ends()) == 2)
    assert world.ids(1) == world.ids(2)
    assert runner.calls.count("copy") == 1 and runner.calls[0] == "step" and runner.calls[-1] == "step"
    assert world.scheduler.step_time.steps == len(world.steps)
    assert world.scheduler.step_time.predict(2, 1000) > 0
    world.stop()


def test_it_sleeps_when_there_is_nothing_to_do() -> None:
    world = World()
    world.loop.post(Arrived(request(max_tokens=3), 1))
    world.until(lambda: len(world.ends()) == 1)
    assert world.loop.progress_age() == 0.0 or world.loop.progress_age() < PATIENCE
    before = time.thread_time_ns(), len(world.steps)
    world.loop.post(ProposerAt("ipc://x"))
    world.until(lambda: world.moves == ["ipc://x"])
    assert len(world.steps) == before[1]
    assert world.loop.progress_age() == 0.0
    world.stop()


def test_a_loop_that_nobody_listens_to_waits_instead_of_piling_up() -> None:
    world = World(eager=False)
    world.loop.post(Arrived(request(max_tokens=8000), 1))
    world.until(lambda: len(world.deliveries) == HANDED_OVER)
    held = len(world.ids(1))
    assert held < 8000 and not world.ends()
    world.eager = True
    for _ in range(HANDED_OVER):
        world.loop.taken()
    world.until(lambda: len(world.ends()) == 1)
    assert len(world.ids(1)) == 8000
    world.stop()


def test_a_loop_that_waits_for_a_listener_can_be_stopped() -> None:
    world = World(eager=False)
    world.loop.post(Arrived(request(max_tokens=8000), 1))
    world.until(lambda: len(world.deliveries) == HANDED_OVER)
    world.stop()


def test_a_deadline_passes_while_others_run() -> None:
    world = World(MockRunner(Profile(step_ms=2.0)))
    world.loop.post(Arrived(request(max_tokens=8000), 1, time.monotonic() + 0.05))
    world.loop.post(Arrived(request(max_tokens=60), 2))
    world.until(lambda: len(world.ends()) == 2)
    first, second = world.ends()
    assert (first.stream, first.failed.reason) == (1, "deadline")
    assert second.finished.completion_tokens == 60
    world.stop()


def test_a_runner_that_fails_fails_everyone_once_and_whoever_comes_later() -> None:
    world = World(MockRunner(Profile(crash_every=5)))
    for stream in (1, 2):
        world.loop.post(Arrived(request(max_tokens=100), stream))
    world.until(lambda: len(world.ends()) == 2 and bool(world.failures))
    assert {(end.stream, end.failed.reason, end.failed.retryable) for end in world.ends()} == {
        (1, "engine", True),
        (2, "engine", True),
    }
    assert "MockFailure" in world.failures[0]
    world.loop.post(Arrived(request(max_tokens=100), 3))
    world.until(lambda: len(world.ends()) == 3)
    world.stop()


def test_progress_has_an_age_while_a_step_hangs() -> None:
    release = threading.Event()
    world = World(MockRunner(Profile(step_ms=1.0), sleep=lambda seconds: release.wait(PATIENCE) and None))
    world.loop.post(Arrived(request(max_tokens=2), 1))
    before = time.monotonic()
    while world.loop.progress_age() < 0.02:
        assert time.monotonic() - before < PATIENCE
        time.sleep(0.001)
    release.set()
    world.until(lambda: len(world.ends()) == 1)
    world.stop()


def test_a_cancelled_request_makes_room_at_once() -> None:
    world = World(MockRunner(Profile(step_ms=1.0)), max_sequences=1)
    world.loop.post(Arrived(request(max_tokens=8000), 1))
    world.loop.post(Arrived(request(max_tokens=2), 2))
    world.until(lambda: bool(world.ids(1)))
    world.loop.post(Cancelled(1))
    world.until(lambda: len(world.ends()) == 1)
    assert world.ends()[0].stream == 2
    world.stop()
    world.scheduler.check_idle()
