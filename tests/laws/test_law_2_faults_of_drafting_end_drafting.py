"""Law 2, of our own code: whatever drafting.py or the proposer's line trip over, whenever they do, every request goes
on without drafts and says what it would have said."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from step_loop_bench import DraftsBy, EngineRoom, NoDrafts, draft, some_prompt

from services.api.drafts import DraftItem
from services.api.messages import Finished
from services.worker.engine import CandidateAt, ProposerAt
from services.worker.running.mock import MockRunner, Profile
from services.worker.scheduling.events import DraftAsk, SwitchOff
from services.worker.scheduling.scheduler import Scheduler
from services.worker.speculation.advice import AdvisedBy
from services.worker.speculation.drafting import Drafting

# What the scheduler calls of drafting, and the step loop of the line; and a later call in which each trips, too.
OF_DRAFTING = {
    "joined": 15, "left": 10, "switch_off": 1, "check_idle": 2, "take": 12, "choose": 30, "ahead": 30, "judged": 40,
    "time_passed": 30, "urgent": 30, "settle": 30, "foresee": 5, "fallen": 5, "look_out": 10,
}  # fmt: skip
OF_THE_LINE = {
    "move_to": 1, "try_out": 1, "forget": 5, "ask_ahead": 8, "look": 20, "wait_ahead": 2, "ask": 8, "collect": 8,
    "rest": 1, "listens": 40, "hurry": 8,
}  # fmt: skip
# While a long step runs: tests/services/worker/speculation/test_rehearsal.py
OF_REHEARSALS = {"expects", "rehearse", "rehearsed"}


class Fault(RuntimeError):
    pass


class Tripping:
    """Takes the place of a method: does its work and then fails, in its call number `at` and in all after it."""

    def __init__(self, owner: Any, name: str, at: int) -> None:
        self._real, self._at = getattr(owner, name), at
        self.calls = 0
        setattr(owner, name, self)

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        found = self._real(*args)
        if self.calls >= self._at:
            raise Fault(f"call {self.calls}")
        return found


def cycle(ask: DraftAsk) -> DraftItem:
    """What the mock says next, with one mistake now and then: leases live on, and leases are dropped."""
    text = [*ask.sequence.token_ids, *ask.ahead]
    tokens = [100 + (text[-1] - 100 + 1 + k) % 32 for k in range(ask.budget)]
    if len(text) % 5 == 0:
        tokens[-1] = 99
    return draft(ask, tokens, chances=[0.9] * len(tokens))


class Ran(NamedTuple):
    texts: list[list[int]]
    failed: bool
    drafts: int


def run(method: str, drafts: NoDrafts, trip: Callable[[Scheduler], object] = lambda _: None) -> Ran:
    """The same requests each time; `trip` is given the scheduler before any of them."""
    chance = random.Random(11)
    room = EngineRoom(MockRunner(Profile(acceptance=0.8, step_ms=0.01), pages=120), method=method)
    scheduler = room.scheduler
    # As actor.py puts them together.
    room.loop._drafts = AdvisedBy(scheduler.advice, drafts)
    trip(scheduler)
    with room:
        room.loop.post(ProposerAt("ipc://one"))
        room.loop.post(CandidateAt("ipc://another"))
        streams = [
            room.send(some_prompt(chance, 60), max_tokens=chance.randint(1, 120), temperature=k % 2 * 0.8, seed=k)
            for k in range(20)
        ]
        room.run(streams[:5])
        streams.append(room.send(some_prompt(chance), method="suffix", max_tokens=30))
        room.loop.post(SwitchOff("suffix"))
        room.run(streams)
        assert all(isinstance(end, Finished) for stream in streams for end in room.ends[stream])
        assert all(len(room.ends[stream]) == 1 for stream in streams)
        # Also afterwards all is given back, and others are served.
        room.settle()
        room.settle()
    assert not room.failures
    drafted = sum(tally.drafts for tally in scheduler.tallies.values())
    return Ran([room.tokens[stream] for stream in streams], scheduler.advice.failed, drafted)


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return run("auto", NoDrafts()).texts


@pytest.mark.parametrize("method", ["ngram", "auto"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", OF_DRAFTING)
def test_a_fault_in_drafting_ends_drafting_and_no_request(
    name: str, late: bool, method: str, plain: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    at = OF_DRAFTING[name] if late else 1
    tripping: list[Tripping] = []
    ran = run(method, DraftsBy(cycle), lambda scheduler: tripping.append(Tripping(scheduler.drafting, name, at)))
    assert ran.texts == plain
    tripped = tripping[0].calls >= at
    # How often auto asks depends on what steps of this machine cost.
    assert tripped or (late and method == "auto")
    assert ran.failed == tripped
    assert len([record for record in caplog.records if record.exc_info]) == tripped, "said once"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", OF_THE_LINE)
def test_a_fault_of_the_proposers_line_does_so_too(name: str, late: bool, plain: list[list[int]]) -> None:
    drafts = DraftsBy(cycle)
    Tripping(drafts, name, OF_THE_LINE[name] if late else 1)
    ran = run("ngram", drafts)
    assert ran.texts == plain and ran.failed


def test_one_in_closing_the_line_ends_nothing(plain: list[list[int]]) -> None:
    drafts = DraftsBy(cycle)
    Tripping(drafts, "close", 1)
    assert run("ngram", drafts).texts == plain


def test_where_nothing_fails_drafting_goes_on(plain: list[list[int]]) -> None:
    ran = run("ngram", DraftsBy(cycle))
    assert ran.texts == plain and not ran.failed and ran.drafts > 50


def test_after_a_fault_nobody_gets_a_draft(plain: list[list[int]]) -> None:
    assert run("ngram", DraftsBy(cycle), lambda scheduler: Tripping(scheduler.drafting, "joined", 1)).drafts == 0


def test_the_calls_named_here_are_all_there_are() -> None:
    assert {name for name in vars(Drafting) if not name.startswith("_")} == set(OF_DRAFTING)
    assert {name for name in vars(AdvisedBy) if not name.startswith("_")} == {*OF_THE_LINE, *OF_REHEARSALS, "close"}
