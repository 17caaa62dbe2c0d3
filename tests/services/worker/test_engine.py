"""The thread that turns the wheel: what it hands over, when it waits, and how it fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from driving import limits_of
from mesh_around import request
from paged_fake import PagedFake

from services.api.drafts import DraftItem
from services.worker import engine as step_loop
from services.worker.audit import MOST_TRIES, Audit
from services.worker.engine import HANDED_OVER, CandidateAt, Delivery, ProposerAt, StepLoop
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.runner import Verdict
from services.worker.scheduling.events import (
    Arrived,
    Cancelled,
    DraftAsk,
    DraftsReady,
    Drain,
    Emit,
    Fail,
    Finish,
    is_replay,
)
from services.worker.scheduling.planning import REPLAY_ROWS
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence

PATIENCE = 20.0  # seconds


class World:
    """A loop over the mock; deliveries lie here until the test takes them."""

    def __init__(
        self,
        runner: Any = None,
        *,
        eager: bool = True,
        audit: Audit | None = None,
        now: Callable[[], float] = time.monotonic,
        guess: Callable[[int, int], int] = lambda last, ahead: 100 + (last - 99 + ahead) % 32,
        **limits: Any,
    ) -> None:
        self.audit = audit or Audit()
        self.guess = guess
        self.runner = runner or MockRunner(Profile())
        self.scheduler = Scheduler(limits_of(self.runner, **{"method": "naive", **limits}))
        self.deliveries: list[Delivery] = []
        self.failures: list[str] = []
        self.moves: list[str] = []
        self.asked: list[list[DraftAsk]] = []
        self.asked_ahead: list[list[DraftAsk]] = []
        # What was asked in a hurry and what then, as (sequence, length of its text, budget).
        self.hurried: list[list[tuple[int, int, int]]] = []
        self.confirmed: list[list[tuple[int, int, int]]] = []
        self.open: DraftsReady | None = None
        self.waited: list[float] = []
        self.steps: list[tuple[int, float]] = []
        self.changed = threading.Condition()
        self.eager = eager
        self.closed = False
        self.rests = self.rests_unheard = 0
        self.listening = True
        # Whether answers take longer than a moment, and what had been handed over when that was seen.
        self.slow = False
        self.deliveries_before_waiting: list[int] = []
        self.loop = StepLoop(
            self.scheduler,
            self.runner,
            self,
            deliver=self.deliver,
            failed=self.fail,
            observer=self,
            now=now,
            audit=audit,
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
        with self.changed:
            self.steps.append((rows, seconds))
            self.changed.notify_all()

    # As the proposer's link: drafts what `guess` says, the mock's cycle.

    def move_to(self, endpoint: str) -> None:
        with self.changed:
            self.moves.append(endpoint)
            self.changed.notify_all()

    def forget(self, sequence_ids: list[int], learned: list[Sequence]) -> None:
        pass

    def listens(self) -> bool:
        return self.listening

    def ask_ahead(self, asks: list[DraftAsk]) -> None:
        self.asked_ahead.append(asks)
        self.open = DraftsReady(
            [self.draft(ask) for ask in asks], ahead=True, followed={ask.sequence.id: ask.ahead for ask in asks}
        )

    def hurry(self, asks: list[DraftAsk]) -> None:
        assert len(self.hurried) == len(self.confirmed), "one at a time"
        self.hurried.append(told(asks))

    def ask(self, asks: list[DraftAsk], wait: float) -> None:
        self.asked.append(asks)
        if len(self.confirmed) < len(self.hurried):
            self.confirmed.append(told(asks))
        self.open = DraftsReady([self.draft(ask) for ask in asks])

    def expects(self) -> bool:
        return False

    def rehearse(self) -> None: ...

    def rehearsed(self) -> bool:
        return True

    def rest(self) -> bool:
        with self.changed:
            self.rests += 1
            self.changed.notify_all()
            return self.rests < self.rests_unheard

    def collect(self, within: float | None = None) -> DraftsReady | None:
        if within is not None and self.slow:
            self.deliveries_before_waiting.append(len(self.deliveries))
            return None
        found, self.open = self.open, None
        return found

    look = collect

    def wait_ahead(self, seconds: float) -> DraftsReady | None:
        self.waited.append(seconds)
        return self.collect()

    def draft(self, ask: DraftAsk) -> DraftItem:
        text = [*ask.sequence.token_ids, *ask.ahead]
        return DraftItem(
            sequence_id=ask.sequence.id,
            committed=len(text),
            tokens=[self.guess(text[-1], i) for i in range(ask.budget)],
            source="t",
        )

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

    def audited(self, **results: int) -> bool:
        """Whether this is what has become of the replays of the proposer `ngram` so far."""
        return self.audit.results == {("ngram", name): count for name, count in results.items()}

    def stop(self) -> None:
        self.loop.stop()
        assert self.loop.join(PATIENCE) and self.closed
        # Whatever was replayed, nobody heard of it.
        assert not any(is_replay(item.stream) for delivery in self.deliveries for item in delivery)


def told(asks: list[DraftAsk]) -> list[tuple[int, int, int]]:
    return [(ask.sequence.id, ask.length, ask.budget) for ask in asks]


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

    def step(self, work: Any, meanwhile: Any) -> Any:
        assert self.go.wait(PATIENCE)
        self.calls.append("step")
        return super().step(work, meanwhile)


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


def test_a_proposer_that_did_not_hear_what_ended_is_told_again_though_nothing_else_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_loop, "TELL_AGAIN", 0.005)
    world = World()
    world.until(lambda: world.rests > 0)
    world.rests_unheard = world.rests + 4
    world.loop.post(Arrived(request(max_tokens=3), 1))
    world.until(lambda: world.rests >= world.rests_unheard)
    assert len(world.ends()) == 1
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


# Time to spare ----------------------------------------------------------------------------------------------


class SparingRunner(MockRunner):
    """Says of each step what was handed over before it, and after `meanwhile`."""

    def __init__(self, elsewhere: bool) -> None:
        super().__init__(Profile(acceptance=1.0))
        self.world: World | None = None
        self.elsewhere = elsewhere
        self.seen: list[tuple[int, int]] = []

    def step(self, work: Any, meanwhile: Any) -> Any:
        assert self.world is not None
        before = len(self.world.deliveries)
        meanwhile(self.elsewhere)
        self.seen.append((before, len(self.world.deliveries)))
        return super().step(work)


def test_what_a_step_brought_is_handed_over_and_learned_from_while_the_next_one_runs() -> None:
    runner = SparingRunner(elsewhere=False)
    world = runner.world = World(runner)
    world.loop.post(Arrived(request(max_tokens=20), 1))
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    assert runner.seen == [(0, 0), *((step, step + 1) for step in range(19))]
    assert len(world.steps) == world.scheduler.step_time.steps == 20, "the last one's time came with the idleness"
    assert world.waited == [], "its thread has better things to do"


@pytest.mark.parametrize("slow", [False, True])
def test_what_a_step_brought_is_handed_over_while_drafts_are_waited_for_unless_they_are_there(slow: bool) -> None:
    runner = SparingRunner(elsewhere=False)
    world = runner.world = World(runner, method="ngram", num_speculative_tokens=2, guess=lambda last, at: 99)
    world.slow = slow
    world.loop.post(Arrived(request(max_tokens=20), 1))
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    asked = len(world.asked)
    assert asked > 10
    # One delivery a step: of the step before the question none has left when it is looked for, and all before it have.
    assert world.deliveries_before_waiting == (list(range(asked)) if slow else [])
    assert runner.seen[1 : asked + 1] == [(step + 1, step + 1) if slow else (step, step + 1) for step in range(asked)]


def test_while_a_step_runs_elsewhere_a_part_of_it_is_waited_for_drafts() -> None:
    runner = SparingRunner(elsewhere=True)
    world = runner.world = World(runner, method="ngram", num_speculative_tokens=4)
    world.loop.post(Arrived(request(max_tokens=200), 1))
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    assert world.waited and all(0 < seconds < 0.05 for seconds in world.waited)
    assert world.scheduler.drafting.counts.ways["ahead"] > 10


class ByClock(MockRunner):
    """Its steps take what their rows say, by a clock of its own: what `auto` makes of them is the same anywhere."""

    clock = 0.0

    def step(self, work: Any, meanwhile: Any) -> Any:
        verdicts = super().step(work, meanwhile)
        self.clock += 0.01 + 0.0001 * sum(len(item.tokens) for item in work)
        return verdicts


@pytest.mark.parametrize("method", ["auto", "ngram"])
def test_what_is_asked_in_a_hurry_is_what_is_asked_when_all_is_written_down(method: str) -> None:
    """About the same texts, as long as they will be; but for those that end just then."""
    runner = ByClock(Profile(acceptance=0.9))
    # Each draft is right at first, and wrong somewhere.
    world = World(
        runner, now=lambda: runner.clock, method=method, guess=lambda last, ahead: 100 + (last - 99 + ahead) % 31
    )
    for stream in range(6):
        world.loop.post(Arrived(request(max_tokens=80 + stream), stream))
    world.until(lambda: len(world.ends()) == 6)
    world.stop()
    # The last may have been about texts that ended.
    same = [hurried == confirmed for hurried, confirmed in zip(world.hurried, world.confirmed, strict=False)]
    assert len(same) >= len(world.hurried) - 1
    assert sum(same) > 0.7 * len(same) > 5
    for hurried, confirmed in zip(world.hurried, world.confirmed, strict=False):
        lengths = {sequence: length for sequence, length, _ in confirmed}
        assert all(lengths.get(sequence, length) == length for sequence, length, _ in hurried)


def test_nothing_is_asked_in_a_hurry_while_an_answer_is_due() -> None:
    world = World(method="ngram", guess=lambda last, ahead: 100 + (last - 99 + ahead) % 31)
    world.look = world.wait_ahead = lambda *_: None  # type: ignore[assignment, method-assign]
    world.loop.post(Arrived(request(max_tokens=80), 1))
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    asked = [len(each) for each in (world.hurried, world.asked, world.asked_ahead)]
    assert asked[2] and asked[0] < asked[1]


class Looking(World):
    """Counts how often drafts are looked for."""

    looks = 0

    def try_out(self, endpoint: str) -> None:
        self.move_to(endpoint)

    def look(self) -> DraftsReady | None:
        self.looks += 1
        return self.collect()


def test_what_was_asked_ahead_is_looked_for_after_the_step_and_nothing_is_where_nobody_was_asked() -> None:
    drafted, naive = Looking(method="ngram", num_speculative_tokens=4), Looking()
    for world in (drafted, naive):
        world.loop.post(Arrived(request(max_tokens=200), 1))
        world.until(lambda world=world: len(world.ends()) == 1)  # type: ignore[misc]
        world.stop()
    assert drafted.scheduler.drafting.counts.ways["ahead"] > 3
    assert drafted.looks == len(drafted.asked_ahead)
    assert naive.looks == 0 and len(naive.steps) == 200


@pytest.mark.parametrize("method", ["auto", "ngram"])
def test_nothing_is_thought_of_asking_a_proposer_that_would_not_hear_it(method: str) -> None:
    runner = ByClock(Profile())
    world = Looking(runner, now=lambda: runner.clock, method=method)
    world.listening = False
    world.loop.post(Arrived(request(max_tokens=50), 1))
    world.until(lambda: len(world.ends()) == 1)
    assert world.asked == world.asked_ahead == [] and world.looks == 0
    assert [rows for rows, _ in world.steps[1:]] == [1] * 49
    world.listening = True
    world.loop.post(Arrived(request(max_tokens=50), 2))
    world.until(lambda: len(world.ends()) == 2)
    world.stop()
    assert world.asked or world.asked_ahead


def test_while_there_is_a_candidate_its_answers_are_looked_for_after_each_step() -> None:
    world = Looking()
    world.loop.post(CandidateAt("ipc://new"))
    world.loop.post(Arrived(request(max_tokens=50), 1))
    world.until(lambda: len(world.ends()) == 1)
    assert world.looks == 50
    world.loop.post(CandidateAt(""))
    world.loop.post(Arrived(request(max_tokens=50), 2))
    world.until(lambda: len(world.ends()) == 2)
    world.stop()
    assert world.looks == 50


def test_a_step_that_runs_in_the_thread_takes_only_the_time_of_its_own() -> None:
    clock = [0.0]

    class Slow(MockRunner):
        def step(self, work: Any, meanwhile: Any) -> Any:
            def spare(elsewhere: bool) -> None:
                clock[0] += 5.0
                meanwhile(elsewhere)

            verdicts = super().step(work, spare)
            clock[0] += 1.0
            return verdicts

    world = World(Slow(Profile()), now=lambda: clock[0])
    world.loop.post(Arrived(request(max_tokens=4), 1))
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    assert [seconds for _, seconds in world.steps] == [1.0] * 4


# The audit --------------------------------------------------------------------------------------------------


class WatchedRunner(MockRunner):
    """Writes down what it computes; begins when `begin` is set, and waits for `go` in its replay step number `hold`."""

    def __init__(self, hold: int = 0, **profile: Any) -> None:
        super().__init__(Profile(**profile))
        self.work: list[list[tuple[int, int, int]]] = []  # (stream, start, rows)
        self.begin = threading.Event()
        self.begin.set()
        self.held = threading.Event()
        self.go = threading.Event()
        self._hold = hold

    def step(self, work: Any, meanwhile: Any) -> Any:
        assert self.begin.wait(PATIENCE)
        self.work.append([(item.sequence.stream, item.start, len(item.tokens)) for item in work])
        if is_replay(work[0].sequence.stream):
            self._hold -= 1
            if self._hold == 0:
                self.held.set()
                assert self.go.wait(PATIENCE)
        return super().step(work, meanwhile)


def auditing(threshold: int = 1, path: str = "") -> Audit:
    return Audit(1.0, threshold, salt="secret", path=path)


def naive_text(prompt: list[int] | None = None, **sampling: Any) -> list[int]:
    world = World()
    world.loop.post(Arrived(request(prompt, **sampling), 1))
    world.until(lambda: len(world.ends()) == 1)
    world.stop()
    return world.ids(1)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "target_match"])
def test_what_was_drafted_is_computed_again_when_there_is_nothing_else_to_do_and_is_the_same(
    sampling: dict[str, Any],
) -> None:
    world = World(WatchedRunner(), audit=auditing(), method="ngram")
    world.loop.post(Arrived(request(max_tokens=100, **sampling), 1))
    world.until(lambda: world.audited(same=1))
    world.stop()
    assert len(world.ends()) == 1 and world.ids(1) == naive_text(max_tokens=100, **sampling)
    replayed = [item for step in world.runner.work for item in step if is_replay(item[0])]
    # All of it, from the first token of the prompt on, and then one token a step.
    assert [(start, rows) for _, start, rows in replayed] == [(0, 4), *((4 + k, 1) for k in range(99))]
    scheduler = world.scheduler
    assert (scheduler.prompt_tokens, scheduler.generated_tokens, scheduler.ends) == (4, 100, {"length": 1})
    assert scheduler.tallies.keys() == {("ngram", world.ends()[0].finished.speculation.verify_strategy)}
    assert world.audit.compared_tokens == 100


class EndingRunner(MockRunner):
    """As request 1 ends, it drains, or it fails in the next step, before anyone has time."""

    world: World
    ended = False

    def __init__(self, fails: bool) -> None:
        super().__init__(Profile())
        self.fails = fails

    def step(self, work: Any, meanwhile: Any) -> Any:
        if self.ended and self.fails:
            raise RuntimeError("gone")
        verdicts = super().step(work, meanwhile)
        for item, verdict in zip(work, verdicts, strict=True):
            sequence = item.sequence
            if sequence.stream == 1 and verdict is not None and sequence.length + len(verdict.tokens) >= sequence.limit:
                self.ended = True
                if not self.fails:
                    self.world.loop.post(Drain())
        return verdicts


@pytest.mark.parametrize("fails", [False, True])
def test_what_ended_just_before_the_audit_closed_is_counted_as_dropped(fails: bool) -> None:
    runner = EndingRunner(fails)
    world = runner.world = World(runner, audit=auditing(), method="ngram")
    world.loop.post(Arrived(request(max_tokens=4000), 2))
    world.loop.post(Arrived(request(max_tokens=60), 1))
    world.until(lambda: len(world.ends()) == 2)
    world.loop.stop()
    assert world.loop.join(PATIENCE)
    assert world.audited(dropped=1)


def test_a_request_whose_reader_left_is_checked_as_far_as_it_came() -> None:
    world = World(MockRunner(Profile()), audit=auditing(), eager=False, method="ngram")
    world.loop.post(Arrived(request(max_tokens=8000), 1))
    # The loop waits for its listener, so that the request is at work when it is cancelled.
    world.until(lambda: len(world.deliveries) == HANDED_OVER)
    world.loop.post(Cancelled(1))
    world.eager = True
    for _ in range(HANDED_OVER):
        world.loop.taken()
    world.until(lambda: world.audited(same=1))
    world.stop()
    assert world.ends() == [] and world.audit.compared_tokens >= len(world.ids(1)) > HANDED_OVER


class LyingRunner(MockRunner):
    """Says something else as soon as there was a draft, as a fault in verification would."""

    def step(self, work: Any, meanwhile: Any) -> Any:
        verdicts = super().step(work, meanwhile)
        for item, verdict in zip(work, verdicts, strict=True):
            if item.draft and item.start > 40:
                verdict.tokens[-1] = 100 + (verdict.tokens[-1] - 99) % 32
        return verdicts


def test_an_answer_that_drafts_have_changed_is_found_and_its_proposer_is_switched_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(LyingRunner(Profile()), audit=auditing(2, "a liar"), method="ngram")
    with caplog.at_level(logging.WARNING):
        for stream in (1, 2):
            world.loop.post(Arrived(request(max_tokens=200), stream))
            world.until(lambda stream=stream: world.audited(different=stream))  # type: ignore[misc]
    right, wrong = naive_text(max_tokens=200), world.ids(1)
    position = next(place for place in range(200) if right[place] != wrong[place])
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2 and all(f"from token {position} on" in told for told in warnings)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    # A replay ends where it differs.
    assert world.audit.compared_tokens == 2 * (position + 1)
    asked = len(world.asked)
    world.loop.post(Arrived(request(max_tokens=200), 3))
    world.loop.post(Arrived(request(max_tokens=200, drafts=4), 4))
    world.until(lambda: len(world.ends()) == 4)
    world.stop()
    assert len(world.asked) == asked
    assert world.ids(3) == world.ids(4) == right
    assert world.failures == [] and world.audited(different=2)


def test_a_request_that_comes_in_the_middle_of_a_replay_waits_for_one_step_of_it_and_no_more() -> None:
    runner = WatchedRunner(hold=30)
    world = World(runner, audit=auditing(), method="ngram")
    world.loop.post(Arrived(request(max_tokens=100), 1))
    assert runner.held.wait(PATIENCE)
    before = len(runner.work)
    world.loop.post(Arrived(request([120, 121, 122], max_tokens=50, temperature=1.0), 2))
    runner.go.set()
    world.until(lambda: world.audited(same=2))
    world.stop()
    assert world.ids(2) == naive_text([120, 121, 122], max_tokens=50, temperature=1.0)
    streams = [[stream for stream, _, _ in step] for step in runner.work]
    end = next(k for k in range(before, len(streams)) if streams[k] != [2])
    assert streams[before - 1] == [-1] and end > before and streams[end] == [-2]
    # It goes on behind the 30 tokens that agreed: with the prompt they are computed as one chunk.
    assert runner.work[end] == [(-2, 0, 4 + 30)]
    assert world.audit.compared_tokens == 150


def test_a_replay_has_short_steps_whatever_its_prompt() -> None:
    prompt = [100 + k % 32 for k in range(700)]
    world = World(WatchedRunner(), audit=auditing(), method="ngram")
    world.loop.post(Arrived(request(prompt, max_tokens=50), 1))
    world.until(lambda: world.audited(same=1))
    world.stop()
    rows = [item[2] for step in world.runner.work for item in step if is_replay(item[0])]
    assert max(rows) == REPLAY_ROWS and sum(rows) == 700 + 49
    assert max(item[2] for step in world.runner.work for item in step) > REPLAY_ROWS


def test_a_replay_that_never_comes_to_its_end_is_given_up() -> None:
    runner = MockRunner(Profile())
    world = World(runner, audit=auditing(), method="ngram")
    audit, begin, live = world.audit, world.audit.begin, [1]

    def begun(at: float) -> Arrived | None:
        replay = begin(at)
        if replay is not None and replay.generate.request_id == "long":
            # Each time another one comes, before the first step.
            live[0] += 1
            world.loop.post(Arrived(request(name="short", max_tokens=2, method="naive"), live[0]))
        return replay

    audit.begin = begun  # type: ignore[method-assign]
    world.loop.post(Arrived(request(name="long", max_tokens=300), 1))
    world.until(lambda: len(world.ends()) == 1 + MOST_TRIES)
    world.until(lambda: world.audited(given_up=1))
    world.stop()
    assert world.failures == []


def test_pages_of_replays_are_free_again_and_nobody_finds_their_text() -> None:
    def pages_after(audit: Audit) -> tuple[int, int, int, dict[Any, int]]:
        world = World(PagedFake(400), audit=audit, guess=lambda last, ahead: 1 + (last + ahead) % 9, method="ngram")
        # The second has the beginning of its text from the first.
        for stream in (1, 2, 3):
            world.loop.post(Arrived(request([1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=30 + stream), stream))
            world.until(lambda stream=stream: len(world.ends()) == stream)  # type: ignore[misc]
        world.until(lambda: sum(world.audit.results.values()) == (3 if audit.share else 0))
        world.stop()
        assert world.failures == []
        pages, sharing = world.scheduler.pages, world.scheduler.planner.sharing
        world.scheduler.check_idle()
        assert pages.free + pages.cached == pages.total
        return pages.cached, sharing.asked_tokens, sharing.found_tokens, audit.results

    *plain, _ = pages_after(Audit())
    *audited, results = pages_after(auditing())
    assert audited == plain and plain[2] > 0
    assert results == {("ngram", "same"): 3}


def test_a_replay_runs_where_cached_text_fills_all_pages() -> None:
    world = World(PagedFake(8), audit=auditing(), guess=lambda last, ahead: 1 + (last + ahead) % 9, method="ngram")
    for stream in range(1, 6):
        world.loop.post(Arrived(request([stream, 2, 3, 4, 5], max_tokens=25), stream))
        world.until(lambda stream=stream: world.audited(same=stream))  # type: ignore[misc]
    world.stop()
    world.scheduler.check_idle()
    assert world.failures == []


def test_a_target_that_drains_stops_its_replay_at_once_and_drops_the_rest() -> None:
    runner = WatchedRunner(hold=30)
    runner.begin.clear()
    world = World(runner, audit=auditing(), method="ngram")
    for stream in (1, 2, 3):
        world.loop.post(Arrived(request(max_tokens=100), stream))
    runner.begin.set()
    assert runner.held.wait(PATIENCE)
    before = len(runner.work)
    world.loop.post(Drain())
    world.loop.post(Arrived(request(), 4))
    runner.go.set()
    world.until(lambda: len(world.ends()) == 4)
    world.stop()
    assert world.ends()[-1].failed.reason == "draining"
    assert len(runner.work) == before and world.audited(dropped=3)
    world.scheduler.check_idle()
    assert world.failures == []


def test_an_engine_that_hangs_in_a_replay_is_seen() -> None:
    clock = [100.0]
    runner = WatchedRunner(hold=30)
    world = World(runner, audit=auditing(), now=lambda: clock[0], method="ngram")
    world.loop.post(Arrived(request(max_tokens=100), 1))
    assert runner.held.wait(PATIENCE)
    clock[0] += 50.0
    assert world.loop.progress_age() == 50.0
    runner.go.set()
    world.until(lambda: world.audited(same=1))
    world.stop()


class FailingRunner(MockRunner):
    """Computes everything but replays."""

    def __init__(self, kind: str) -> None:
        super().__init__(Profile())
        self.kind = kind

    def step(self, work: Any, meanwhile: Any) -> Any:
        verdicts = super().step(work, meanwhile)
        if is_replay(work[0].sequence.stream):
            if self.kind == "engine":
                raise RuntimeError("gone")
            return [Verdict([], 0, failure="no") for _ in work]
        return verdicts


def test_an_engine_that_fails_in_a_replay_has_failed() -> None:
    world = World(FailingRunner("engine"), audit=auditing(), method="ngram")
    world.loop.post(Arrived(request(max_tokens=100), 1))
    world.until(lambda: bool(world.failures))
    world.loop.post(Arrived(request(max_tokens=100), 2))
    world.until(lambda: len(world.ends()) == 2)
    world.stop()
    assert isinstance(world.ends()[0], Finish) and world.ends()[1].failed.reason == "engine"
    assert world.audited(dropped=1) and "RuntimeError" in world.failures[0]


def test_a_replay_that_fails_alone_takes_nobody_along() -> None:
    world = World(FailingRunner("sequence"), audit=auditing(), method="ngram")
    for stream in (1, 2):
        world.loop.post(Arrived(request(max_tokens=100), stream))
        world.until(lambda stream=stream: world.audited(given_up=stream))  # type: ignore[misc]
    world.stop()
    assert world.failures == [] and [type(end) for end in world.ends()] == [Finish, Finish]
    assert world.scheduler.ends == {"length": 2}
