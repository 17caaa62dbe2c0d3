"""What is drafted, asked for and waited for, step by step: a controller over a scripted proposer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from driving import request
from msgspec.structs import replace

from services.api.drafter import NO_DRAFT, Draft
from services.api.messages import Speculation
from services.worker.grammar.drafting import SOURCE as GRAMMAR
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import Drafted, NewSequence, Result, Work, size_of
from services.worker.scheduling.events import Arrived, Cancelled, SequenceEnded, StepDone
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation import controller as module
from services.worker.speculation import probes
from services.worker.speculation.acceptance import Rates
from services.worker.speculation.comparison import Comparison
from services.worker.speculation.controller import Controller
from services.worker.speculation.remote.client import Answer, Ask
from services.worker.speculation.rest import LEAST_SEQUENCES, STEPS
from services.worker.speculation.speculating import MOST_IN_VAIN, Speculating


def cycle(last: int, count: int) -> list[int]:
    """How the mock's text goes on, where it stays on its cycle."""
    return [100 + (last - 99 + place) % 32 for place in range(count)]


class Proposer:
    """As Proposers: answers every request at once, with what the mock will say."""

    def __init__(self) -> None:
        self.waited: list[list[Ask]] = []
        self.ahead: list[list[Ask]] = []
        self.waits: list[float] = []
        self.forgotten: list[tuple[int, bool]] = []
        self.listening = True
        self.confidence = 0.95
        self.wrong = False
        self.silent = False
        self.seconds = 1e-4
        self._open: Answer | None = None

    def listens(self) -> bool:
        return self.listening

    def ask(self, asks: list[Ask], wait: float) -> bool:
        self.waited.append(asks)
        self.waits.append(wait)
        self._open = self._answer(asks, False)
        return True

    def ask_ahead(self, asks: list[Ask]) -> bool:
        self.ahead.append(asks)
        self._open = self._answer(asks, True)
        return True

    def collect(self) -> list[Answer]:
        found, self._open = self._open, None
        return [] if found is None else [found]

    look = collect

    def forget(self, sequence: Any, learn: bool) -> None:
        self.forgotten.append((sequence.sequence_id, learn))

    def _answer(self, asks: list[Ask], ahead: bool) -> Answer:
        asked = {ask.sequence.sequence_id: (len(ask.sequence.token_ids), ask.ahead) for ask in asks}
        drafts = [self.draft(ask) for ask in asks] if not self.silent else []
        return Answer(drafts, asked, ahead, not self.silent, self.seconds)

    def draft(self, ask: Ask) -> tuple[int, int, Draft]:
        text = [*ask.sequence.token_ids, *ask.ahead]
        tokens = cycle(text[-1] + 7 * self.wrong, ask.budget)
        return ask.sequence.sequence_id, len(text), Draft(tokens, "s", 5, confidence=[self.confidence] * len(tokens))


class World:
    """Steps of a mock engine whose time is as told."""

    def __init__(self, method: str = "auto", row_seconds: float = 0.0, acceptance: float = 1.0, **limits: Any) -> None:
        self.runner = MockRunner(Profile(acceptance=acceptance))
        self.scheduler = Scheduler(limits_of(self.runner.facts, **{"method": method, **limits}))
        self.proposer = Proposer()
        self.controller = Controller(self.scheduler.limits, self.proposer)  # type: ignore[arg-type]
        self.row_seconds = row_seconds
        self.work = Work()
        self.new: list[NewSequence] = []
        self.seconds = 0.0

    def arrive(self, sequence_id: int = 1, **more: Any) -> None:
        generate = replace(request([100 + sequence_id, 101, 102], max_tokens=more.pop("max_tokens", 400)), **more)
        self.scheduler.handle(Arrived(generate, sequence_id))

    def step(self) -> list[int]:
        """Tokens of the drafts of a step, by sequence."""
        plan = self.scheduler.schedule()
        self.work = self.scheduler.place(*self.controller.draft(plan))
        self.new += self.work.new
        self.runner.launch(self.work)
        self.controller.ask_ahead(self.work)
        result = self.runner.finish()
        result.seconds = 0.01 + self.row_seconds * sum(item.rows for item in self.work.items)
        self.seconds += result.seconds
        out = self.scheduler.handle(StepDone(result))
        self.controller.commit(self.work, result)
        self.controller.learn(self.work, result, size_of(self.work.items))
        self.end(out)
        return [len(item.draft.tokens) for item in self.work.items]

    def end(self, out: list[Any]) -> None:
        for item in out:
            if isinstance(item, SequenceEnded):
                self.controller.forget(item.sequence, item.learn)

    def run(self, steps: int) -> list[int]:
        """The first sequence's drafts."""
        return [drafted[0] for _ in range(steps) if (drafted := self.step())]

    @property
    def known(self) -> Speculating:
        [known] = self.controller._known.values()
        return known


def test_a_step_waits_once_for_those_that_have_no_draft_and_the_rest_is_asked_ahead() -> None:
    world = World("suffix")
    for sequence_id in range(3):
        world.arrive(sequence_id)
    world.step()
    assert world.proposer.waited == [], "a prompt is computed first"
    world.step()
    [asks] = world.proposer.waited
    assert [ask.ahead for ask in asks] == [[]] * 3
    world.run(8)
    assert len(world.proposer.waited) == 1, "what follows was asked for while steps ran"
    assert all(ask.ahead == list(item.draft.tokens) for ask, item in zip(
        world.proposer.ahead[-1], world.work.items, strict=True))  # fmt: skip


def test_a_draft_is_used_as_long_as_the_text_agrees_with_it() -> None:
    world = World("ngram", num_speculative_tokens=4)
    world.arrive()
    assert world.run(6) == [0, 4, 4, 4, 4, 4]
    assert world.controller.counts.ways["none"] == 0 and world.controller.counts.dropped == 0
    world.proposer.wrong = True
    world.known.prepared = world.proposer._open = None
    assert world.step() == [4] and world.known.prepared is None, "rejected, and dropped"
    assert world.controller.counts.dropped == 1


def test_a_fixed_length_method_waits_up_to_the_deadline_and_auto_as_long_as_it_pays() -> None:
    for method, waits in (("suffix", 0.0), ("auto", module.WAIT_LONGER * module.FIRST_COSTS["waited"])):
        world = World(method)
        world.arrive()
        world.step()
        # What was asked ahead got lost.
        world.proposer._open = None
        world.step()
        assert world.proposer.waits == [pytest.approx(waits)]


def test_naive_requests_and_silent_proposers_cost_no_request() -> None:
    world = World("naive")
    world.arrive()
    world.run(5)
    assert not world.proposer.waited and not world.proposer.ahead
    world = World("auto")
    world.proposer.listening = False
    world.arrive()
    world.run(5)
    assert not world.proposer.waited and not world.proposer.ahead


def test_wrong_drafts_are_soon_neither_verified_nor_asked_for() -> None:
    world = World(row_seconds=0.001)
    world.proposer.wrong, world.proposer.confidence = True, 0.99
    world.arrive(max_tokens=4000)
    world.run(200)
    asked = len(world.proposer.waited) + len(world.proposer.ahead)
    assert sum(world.run(300)) <= 3
    again = len(world.proposer.waited) + len(world.proposer.ahead) - asked
    assert 0 < again * world.proposer.seconds <= 2.5 * probes.SHARE * 300 * 0.011, "probed, at a small share"


def test_with_many_sequences_most_steps_do_not_look_for_drafts_that_do_not_pay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(row_seconds=0.001)
    # Probes are rare: each takes a millisecond.
    world.proposer.wrong, world.proposer.confidence, world.proposer.seconds = True, 0.99, 0.001
    for sequence_id in range(LEAST_SEQUENCES):
        world.arrive(sequence_id, max_tokens=2000)
    world.run(100)
    looked = 0

    def look() -> list[Answer]:
        nonlocal looked
        looked += 1
        return Proposer.collect(world.proposer)

    world.proposer.look = look  # type: ignore[method-assign]
    world.run(90)
    assert 90 // STEPS <= looked <= 30
    monkeypatch.setattr(probes, "SHARE", 0.0)
    world.arrive(99, namespace="another")
    world.run(3)
    asked = [[ask.sequence.sequence_id for ask in asks] for asks in world.proposer.waited + world.proposer.ahead]
    assert [99] in asked, "a new text ends the rest, and what is known of others isn't asked again"


@pytest.mark.parametrize("seconds", [0.001, 1e-4])
def test_where_asking_is_dear_a_text_that_repeats_itself_has_drafts_asked_for(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of a step: dear; a hundredth: tried now and then, which doesn't happen here."""
    monkeypatch.setattr(probes, "SHARE", 0.0)
    world = World(row_seconds=1e-5)
    world.proposer.wrong, world.proposer.confidence, world.proposer.seconds = True, 0.99, seconds
    world.controller.asking_seconds = {"ahead": seconds, "waited": 1.0}
    world.arrive(max_tokens=300)
    world.run(31)
    asked = len(world.proposer.ahead)
    world.run(4)
    # Its 32 tokens begin again.
    world.proposer.wrong = False
    assert (sum(world.run(20)) > 20) == (len(world.proposer.ahead) > asked) == (seconds == 0.001)


def test_a_text_that_repeats_itself_in_vain_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SHARE", 0.0)
    world = World(row_seconds=0.001)
    world.proposer.wrong, world.proposer.confidence, world.proposer.seconds = True, 0.99, 0.001
    world.controller.asking_seconds = {"ahead": 0.001, "waited": 1.0}
    world.arrive(max_tokens=600)
    world.run(100)
    asked = len(world.proposer.ahead)
    world.run(100)
    assert len(world.proposer.ahead) == asked <= 3 * MOST_IN_VAIN


@pytest.mark.parametrize(("sequences", "waits"), [(1, True), (200, False)])
def test_a_step_waits_for_a_first_draft_only_where_that_could_save_as_much(
    sequences: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(row_seconds=1e-6, max_sequences=256)
    world.controller.asking_seconds = {"ahead": 1e-4, "waited": 0.001}
    world.arrive(0, namespace="one")
    for sequence_id in range(1, sequences):
        world.arrive(sequence_id, speculation=Speculation(method="naive"))
    world.run(5)
    monkeypatch.setattr(probes, "SHARE", 0.0)
    # Whatever is asked ahead has not been answered when the step begins.
    world.proposer.ask_ahead = lambda asks: False  # type: ignore[method-assign]
    world.arrive(999, namespace="another")
    world.run(3)
    assert (999 in [ask.sequence.sequence_id for asks in world.proposer.waited for ask in asks]) == waits


def test_the_same_where_the_workers_head_does_not_pay_and_it_is_tried_now_and_then() -> None:
    world = World(row_seconds=0.001)
    world.proposer.silent, world.proposer.seconds = True, 0.001
    for sequence_id in range(LEAST_SEQUENCES):
        world.arrive(sequence_id, max_tokens=2000)
    for sequence in world.scheduler.waiting:
        sequence.drafter = "eagle3"
    asked = rested = 0
    for step in range(400):
        plan = world.scheduler.schedule()
        rests = world.controller.rest()
        drafts, budgets = ({}, {}) if rests else world.controller.draft(plan)
        work = world.scheduler.place(drafts, budgets)
        world.runner.launch(work)
        world.controller.ask_ahead(work)
        result = world.runner.finish()
        result.seconds = 0.05
        world.scheduler.handle(StepDone(result))
        world.controller.commit(work, result)
        world.controller.learn(work, result, size_of(work.items))
        if budgets:
            world.controller.ask_beside(work)
            wrong = Draft([7] * 5, "eagle3", confidence=[0.9] * 5)
            drafted = [wrong if item.next_budget else NO_DRAFT for item in work.items]
            world.controller.take_head(work, Drafted(drafted, 0.05))
        if step >= 200:
            rested, asked = rested + rests, asked + len(budgets)
    assert rested > 150
    assert 0 < asked <= 3, "a draft of 50 ms in 200 steps of 50"


@pytest.mark.parametrize("method", ["auto", "eagle3"])
def test_the_head_is_not_asked_for_a_sequence_that_it_has_lost(method: str) -> None:
    world = World(method, head="eagle3")
    world.arrive(1)
    world.arrive(2)
    for sequence in world.scheduler.waiting:
        sequence.drafter = "eagle3"
    world.step()
    assert [item.next_budget > 0 for item in world.work.items] == [True, True]
    world.controller.lose_head([2, 77])
    world.step()
    assert {item.sequence_id: item.next_budget > 0 for item in world.work.items} == {1: True, 2: False}


@pytest.mark.parametrize(("method", "rests"), [("auto", True), ("suffix", False)])
def test_where_looking_takes_longer_than_drafts_save_most_steps_rest_until_that_changes(
    method: str, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHORT_STEP", 1.0)
    world = World(method)
    costs, looked = 0.05, 0

    def look() -> list[Answer]:
        nonlocal looked
        looked += 1
        world.seconds += costs
        return Proposer.collect(world.proposer)

    world.proposer.look = look  # type: ignore[method-assign]
    world.controller._comparison = Comparison()
    world.controller._now = lambda: world.seconds
    world.arrive(max_tokens=20000, speculation=Speculation(method=method, num_speculative_tokens=2))
    drafted = sum(world.run(600))
    assert (looked < 400 and drafted > 20) if rests else looked == 600
    costs, looked = 0.0, 0
    world.run(100)
    assert sum(world.run(100)) > 100
    assert world.controller.counts.source("s").accepted == world.controller.counts.source("s").drafted


def test_drafts_that_become_good_again_are_found_by_probing() -> None:
    world = World(row_seconds=0.0002)
    world.proposer.wrong = True
    world.arrive(max_tokens=20000)
    world.run(300)
    world.proposer.wrong = False
    assert sum(world.run(400)) > 200


def test_expensive_rows_give_short_drafts_and_cheap_rows_long_ones() -> None:
    def longest(row_seconds: float) -> int:
        world = World(row_seconds=row_seconds, acceptance=0.8)
        world.proposer.confidence = 0.8
        world.arrive(max_tokens=4000)
        return max(world.run(300)[200:])

    assert longest(0.1) <= 1 < 4 <= longest(0.0001)


def test_one_namespace_learns_nothing_of_another() -> None:
    world = World()
    world.arrive(1, namespace="a")
    world.proposer.wrong = True
    world.run(30)
    world.arrive(2, namespace="b")
    world.step()
    a, b = world.controller.acceptance.of("a"), world.controller.acceptance.of("b")
    assert a.rates("s").values != b.rates("s").values == Rates().values


@pytest.mark.parametrize(
    "draft",
    [
        Draft([-1]),
        Draft([1 << 40]),
        Draft([]),
        Draft([100, 101], parents=[-1]),
        Draft([100, 101], parents=[1, -1]),
        Draft([100, 100], parents=[-1, -1]),
    ],
)
def test_invalid_drafts_are_refused_and_change_nothing(draft: Draft) -> None:
    world = World()
    world.proposer.draft = lambda ask: (ask.sequence.sequence_id, len(ask.sequence.token_ids), draft)  # type: ignore[method-assign]
    world.arrive()
    assert sum(world.run(5)) == 0
    assert world.controller.counts.refused > 0 and world.known.prepared is None


def test_drafts_for_others_and_for_texts_that_went_on_are_late() -> None:
    world = World("ngram")
    world.arrive()
    world.run(2)
    [known] = world.controller._known.values()
    text = known.sequence.token_ids
    stale = Answer(
        [(known.sequence.sequence_id, len(text) - 3, Draft([1, 2], "s")), (99, 4, Draft([1], "s"))],
        {known.sequence.sequence_id: (len(text) - 3, []), 99: (4, [])},
        True,
        True,
        0.0,
    )
    known.prepared = None
    world.controller._take(stale)
    assert world.controller.counts.late == 1 and known.prepared is None


def test_a_sequence_that_ends_is_forgotten_and_learned_from_where_that_is_allowed() -> None:
    world = World()
    world.arrive(1, namespace="n")
    world.arrive(2)
    world.run(3)
    world.end(world.scheduler.handle(Cancelled(1)))
    world.end(world.scheduler.handle(Cancelled(2)))
    assert world.proposer.forgotten == [(1, True), (2, False)]
    world.controller.check_idle()


def test_a_draft_of_the_workers_head_is_used_in_the_next_step_without_the_proposer() -> None:
    world = World("ngram")
    world.arrive()
    [sequence] = world.scheduler.waiting
    sequence.drafter = "toy"
    for step in range(4):
        plan = world.scheduler.schedule()
        drafts, budgets = world.controller.draft(plan)
        work = world.scheduler.place(drafts, budgets)
        assert [item.next_budget for item in work.items] == [8]
        world.runner.launch(work)
        world.controller.ask_ahead(work)
        verdicts = world.runner.finish().verdicts
        assert len(work.items[0].draft.tokens) == (8 if step else 0)
        [verdict] = verdicts
        assert verdict is not None and verdict.accepted == len(work.items[0].draft.tokens)
        result = Result(verdicts, 0.01)
        world.scheduler.handle(StepDone(result))
        world.controller.commit(work, result)
        world.controller.learn(work, result, size_of(work.items))
        world.controller.ask_beside(work)
        world.controller.take_head(work, Drafted([Draft(cycle(verdict.tokens[-1], 8), "toy")]))
    assert not world.proposer.waited and not world.proposer.ahead
    assert world.controller.counts.ways["head"] == 3


class Head:
    """The worker's head beside `auto`: it answers a budget with what the mock will say, or with nonsense."""

    def __init__(
        self, world: World, *, wrong: bool = False, confidence: float = 0.9, seconds: float = 1e-3, forced: int = 0
    ) -> None:
        """`forced`: tokens that a grammar forces in each step."""
        self.world, self.wrong, self.confidence, self.seconds = world, wrong, confidence, seconds
        self.budgets: list[int] = []
        # By step: whether it is wrong then.
        self.fails: Callable[[int], bool] = lambda step: self.wrong
        # Of the next step: what it takes to read all of the text that it hasn't read.
        self.reading_seconds = 0.0
        self.arrive(forced=forced)

    def arrive(self, sequence_id: int = 1, forced: int = 0) -> None:
        self.world.arrive(sequence_id, max_tokens=4000)
        [sequence] = self.world.scheduler.waiting
        sequence.drafter = "eagle3"
        sequence.forces_text, self.forced = forced > 0, forced

    def run(self, steps: int) -> int:
        """Returns the number of tokens that were accepted."""
        world, accepted = self.world, 0
        for _ in range(steps):
            plan = world.scheduler.schedule()
            drafts, budgets = world.controller.draft(plan)
            if self.forced and plan.items[0].drafts:
                [item] = plan.items
                tokens = cycle(item.sequence.token_ids[-1], self.forced)
                drafts[item.sequence.sequence_id] = Draft(tokens, GRAMMAR, confidence=[1.0] * len(tokens))
            work = world.scheduler.place(drafts, budgets)
            world.runner.launch(work)
            world.controller.ask_ahead(work)
            [verdict] = world.runner.finish().verdicts
            [item] = work.items
            assert verdict is not None
            self.budgets.append(item.next_budget)
            accepted += verdict.accepted
            failing = self.fails(len(self.budgets))
            tokens = cycle(verdict.tokens[-1] + 7 * failing, min(item.next_budget, 5))
            draft = Draft(tokens, "eagle3", confidence=[self.confidence] * len(tokens))
            reading, self.reading_seconds = self.reading_seconds, 0.0
            result = Result([verdict], 0.01)
            world.scheduler.handle(StepDone(result))
            world.controller.commit(work, result)
            world.controller.learn(work, result, size_of(work.items))
            world.controller.ask_beside(work)
            world.controller.take_head(work, Drafted([draft], self.seconds * len(tokens) + reading, reading))
        return accepted


def test_auto_uses_the_workers_head_where_text_says_nothing() -> None:
    world = World()
    world.proposer.silent = True
    head = Head(world)
    accepted = head.run(40)
    assert accepted > 40 * 4 and world.controller.counts.source("eagle3").accepted == accepted
    # At most twice the method's own length.
    assert max(head.budgets) == 10


def test_auto_does_not_run_it_where_a_text_draft_is_nearly_certain() -> None:
    world = World()
    world.proposer.confidence = 0.99
    head = Head(world)
    head.run(80)
    assert world.controller.counts.source("s").accepted > 80 * 8
    assert sum(budget > 0 for budget in head.budgets[40:]) < 10


def test_auto_stops_running_one_that_is_always_wrong_and_probes_it_now_and_then() -> None:
    world = World()
    world.proposer.silent = True
    head = Head(world, wrong=True, seconds=2e-4)
    head.run(200)
    assert sum(budget > 0 for budget in head.budgets[50:]) <= 8
    for sequence_id in range(2, 6):
        world.end(world.scheduler.handle(Cancelled(sequence_id - 1)))
        head.arrive(sequence_id)
        head.run(100)
    # The last of these requests knows what the others have learned.
    assert 0 < sum(budget > 0 for budget in head.budgets[-100:]) <= 4


def test_auto_does_not_run_it_for_what_a_grammar_forces() -> None:
    world = World()
    world.proposer.silent = True
    head = Head(world, forced=6)
    assert head.run(200) > 180 * 6
    assert sum(budget > 0 for budget in head.budgets[50:]) <= 8
    # The next request with a grammar knows it, and one without a grammar doesn't.
    for sequence_id, forced in ((2, 6), (3, 0)):
        world.end(world.scheduler.handle(Cancelled(sequence_id - 1)))
        head.arrive(sequence_id, forced)
        head.run(40)
        runs = sum(budget > 0 for budget in head.budgets[-40:])
        assert runs <= 2 if forced else runs == 40


def test_one_that_is_right_half_of_the_time_runs_in_every_step_although_its_first_drafts_fail() -> None:
    world = World()
    world.proposer.silent = True
    head = Head(world, confidence=0.5)
    head.fails = lambda step: step < 4 or step % 2 == 0
    head.run(60)
    assert sum(budget > 0 for budget in head.budgets) == 60


def test_a_request_begins_with_what_others_taught_of_the_workers_head() -> None:
    world = World()
    world.proposer.silent = True
    head = Head(world, wrong=True)
    head.run(100)
    world.end(world.scheduler.handle(Cancelled(1)))
    head.budgets.clear()
    head.arrive(2)
    head.run(20)
    assert sum(budget > 0 for budget in head.budgets) <= 1


def test_what_it_takes_to_read_a_prompt_is_no_cost_of_drafts() -> None:
    world = World()
    world.proposer.silent = True
    head = Head(world)
    head.reading_seconds = 1.0
    head.run(40)
    assert world.controller.head.costs.draft(1) < 0.01
    assert sum(budget > 0 for budget in head.budgets) == 40


def test_a_text_is_read_when_drafts_for_it_would_have_saved_as_much() -> None:
    """A row takes a millisecond to read, a step 10."""
    world = World()
    world.proposer.silent = True
    head = Head(world)
    head.run(20)
    world.end(world.scheduler.handle(Cancelled(1)))
    world.controller.head.costs.row_seconds = 1e-3
    head.budgets.clear()
    world.arrive(2, max_tokens=400)
    [sequence] = world.scheduler.waiting
    sequence.token_ids += [100 + place % 32 for place in range(150)]
    sequence.drafter = "eagle3"
    head.run(20)
    first = next(step for step, budget in enumerate(head.budgets) if budget)
    assert 2 <= first <= 10 and all(head.budgets[first:])


def test_of_a_text_draft_and_one_of_its_own_auto_verifies_the_one_expected_to_bring_more() -> None:
    world = World()
    world.proposer.wrong = True
    world.proposer.confidence = 0.3
    head = Head(world)
    accepted = head.run(60)
    assert world.controller.counts.source("eagle3").accepted == accepted > 60 * 4


def test_a_token_is_drafted_as_long_as_its_chance_is_worth_a_pass() -> None:
    world = World()
    world.proposer.silent = True
    head = Head(world, seconds=2e-3)
    head.run(40)
    drafts, budgets = world.controller.draft(world.scheduler.schedule())
    [budget] = budgets.values()
    # A token takes a step of 10 ms and a draft of 10 ms; a pass takes 2 ms.
    assert budget.tokens == 10 and budget.floor == pytest.approx(0.1, rel=0.1)
    world.scheduler.place(drafts, budgets)


def merging(head_wrong: bool, text_wrong: bool) -> World:
    """After 60 steps with text drafts and learned ones as one tree."""
    world = World()
    world.proposer.wrong = text_wrong
    # Not so certain that the head isn't asked.
    world.proposer.confidence = 0.4
    head = Head(world, wrong=head_wrong)
    [sequence] = world.scheduler.waiting
    sequence.trees = True
    head.run(60)
    return world


def test_where_trees_are_allowed_both_kinds_of_drafts_are_verified_as_one() -> None:
    world = merging(head_wrong=True, text_wrong=False)
    sources = world.controller.counts.sources
    assert sources["eagle3+s"].drafts > 0
    assert sum(each.accepted for each in sources.values()) > 60 * 4, "text is right, and the head takes none of it away"


def test_a_merged_draft_credits_text_only_with_its_own_tokens() -> None:
    world = merging(head_wrong=False, text_wrong=True)
    sources = world.controller.counts.sources
    assert sum(each.accepted for each in sources.values()) > 60 * 3
    for way in ("ahead", "waited"):
        upper = world.known.benefit[way].upper
        assert upper is None or upper < 1e-3
    last = len(world.proposer.ahead) + len(world.proposer.waited)
    assert last < 60, "useless text drafts are asked for now and then"


def test_text_drafts_are_asked_for_while_the_workers_head_drafts() -> None:
    world = World()
    world.proposer.confidence = 0.4
    head = Head(world, confidence=0.4)
    [sequence] = world.scheduler.waiting
    sequence.trees = True
    world.proposer.ask_ahead = lambda asks: False  # type: ignore[method-assign]
    order: list[str] = []

    def told(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def tell(*given: Any) -> Any:
            order.append(name)
            return act(*given)

        return tell

    world.proposer.look = lambda: []  # type: ignore[method-assign]
    world.proposer.ask = told("ask", world.proposer.ask)  # type: ignore[method-assign]
    world.proposer.collect = told("collect", world.proposer.collect)  # type: ignore[method-assign]
    world.controller.take_head = told("head", world.controller.take_head)  # type: ignore[method-assign]
    head.run(1)
    assert order == ["ask", "head"]
    head.run(1)
    assert order[2] == "collect"
    assert world.controller.counts.asking_seconds["waited"] > 0.0
    lengths = [len(ask.sequence.token_ids) for asks in world.proposer.waited for ask in asks]
    assert len(lengths) == len(set(lengths)), "once for a text"


@pytest.mark.parametrize("token", [-1, Profile().vocab_size, Profile().vocab_size + 1])
def test_a_draft_token_outside_the_vocabulary_is_refused_and_counted_from_either_kind_of_drafter(token: int) -> None:
    world = World("ngram")
    world.proposer.draft = lambda ask: (ask.sequence.sequence_id, len(ask.sequence.token_ids), Draft([token]))  # type: ignore
    world.arrive()
    assert world.run(6) == [0] * 6 and world.controller.counts.refused >= 5
    own = World("eagle3", head="eagle3")
    own.arrive()
    for refused in range(1, 4):
        assert own.step() == [0]
        # The text ends with the last token of the step.
        own.controller.take_head(own.work, Drafted([Draft([100, token], "eagle3")], 1e-3))
        assert own.known.prepared is None and own.controller.counts.refused == refused
    # No draft is none that is refused.
    own.step()
    own.controller.take_head(own.work, Drafted([Draft()], 1e-3))
    assert own.controller.counts.refused == 3


@pytest.mark.parametrize(("method", "read"), [("auto", False), ("suffix", True)])
def test_auto_reads_no_probabilities_because_it_drops_tokens_for_what_they_are(method: str, read: bool) -> None:
    """What is left of a sampled draft isn't distributed as it was drawn."""
    world = World(method)
    plain = world.proposer.draft

    def sampled(ask: Ask) -> tuple[int, int, Draft]:
        sequence_id, length, draft = plain(ask)
        probs = np.zeros((len(draft.tokens), Profile().vocab_size), np.float32)
        probs[range(len(draft.tokens)), draft.tokens] = 1.0
        return sequence_id, length, draft._replace(probs=probs)

    world.proposer.draft = sampled  # type: ignore[method-assign]
    world.proposer.ask_ahead = lambda asks: False  # type: ignore[method-assign]
    world.arrive(max_tokens=4000)
    found = []
    for _ in range(20):
        world.step()
        found += [item.draft for item in world.work.items if item.draft.tokens]
    assert {draft.probs is not None for draft in found} == {read}
    assert {new.weighed for new in world.new} == {not read}
