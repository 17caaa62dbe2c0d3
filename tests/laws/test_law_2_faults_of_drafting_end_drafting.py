"""Law 2, of our own code: whatever the controller or the proposer's client trip over, whenever they do, every request
goes on without drafts and says what it would have said."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from engine_room import Ask, EngineRoom, Guess, draft, some_prompt

from services.api.drafter import NO_DRAFT
from services.api.drafts import PlacedDraft
from services.api.messages import Finished
from services.worker.mail import ProposersMoved
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import Drafted
from services.worker.speculation.controller import Controller
from services.worker.speculation.guard import GuardedController
from services.worker.speculation.remote.proposers import Proposers

# All that is called from outside, and a later call in which each trips, too.
OF_THE_CONTROLLER = {
    "rest": 20, "draft": 20, "ask_ahead": 20, "commit": 20, "learn": 20, "forget": 10, "check_idle": 2, "joined": 2,
}  # fmt: skip
OF_THE_CLIENT = {
    "move_to": 1, "forget": 5, "listens": 40, "ask": 8, "ask_ahead": 8, "look": 20, "collect": 8, "tell": 1,
}  # fmt: skip
# Called where the worker has a drafter of its own.
BESIDE_A_DRAFTER = {"ask_beside": 5, "take_head": 5, "lose_head": 5}
# What only looks.
FIGURES = {"owner", "count", "given_up"}
# What the controller learns from, in the middle of a step.
INSIDE = {"cost_model.learn": 20, "counts.verified": 5, "acceptance.of": 5, "_prepare": 10, "_drop": 10}


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


def cycle(ask: Ask) -> PlacedDraft:
    """What the mock says next, with one mistake now and then: drafts are used up, and drafts are dropped."""
    text = [*ask.text, *ask.ahead]
    tokens = [100 + (text[-1] - 100 + 1 + k) % 32 for k in range(ask.budget)]
    if len(text) % 5 == 0:
        tokens[-1] = 99
    return draft(ask, tokens, confidence=[0.9] * len(tokens))


class WithDrafter(MockRunner):
    """Its drafter finds nothing to draft, and loses a text behind each step."""

    drafters = ("eagle3",)

    def draft(self) -> Drafted:
        items = self._work.items
        return Drafted([NO_DRAFT] * len(items), 1e-4, lost=[item.sequence_id for item in items[-1:]])


class Ran(NamedTuple):
    texts: list[list[int]]
    failed: bool
    drafts: int


def run(
    method: str,
    guess: Guess | None = None,
    trip: Callable[[Controller], object] = lambda _: None,
    kind: type[MockRunner] = MockRunner,
) -> Ran:
    """The same requests each time; `trip` is given the controller before any of them."""
    chance = random.Random(11)
    head = "eagle3" if kind is WithDrafter else ""
    room = EngineRoom(kind(Profile(acceptance=0.8, step_ms=0.01), pages=120), guess, method=method, head=head)
    trip(room.controller)
    with room:
        sequence_ids = [
            room.send(some_prompt(chance, 60), max_tokens=chance.randint(1, 120), temperature=k % 2 * 0.8, seed=k)
            for k in range(20)
        ]
        room.run(sequence_ids[:5])
        room.engine.post(ProposersMoved({"proposer-1": ("ipc://another", 2)} if guess else {}))
        sequence_ids.append(room.send(some_prompt(chance), method="suffix", max_tokens=30))
        room.run(sequence_ids)
        assert all(isinstance(end, Finished) for sequence_id in sequence_ids for end in room.ends[sequence_id])
        assert all(len(room.ends[sequence_id]) == 1 for sequence_id in sequence_ids)
        # Also afterwards all is given back, and others are served.
        room.settle()
        room.settle()
    assert not room.failures
    drafted = sum(tally.drafts for tally in room.scheduler.tallies.values())
    return Ran([room.tokens[sequence_id] for sequence_id in sequence_ids], room.drafts.failed, drafted)


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return run("auto").texts


def owner(controller: Controller, path: str) -> tuple[Any, str]:
    """Of "client.ask" the client and "ask"."""
    *way, name = path.split(".")
    found: Any = controller
    for each in way:
        found = getattr(found, each)
    return found, name


@pytest.mark.parametrize("method", ["ngram", "auto"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("path", "later"),
    [*OF_THE_CONTROLLER.items(), *((f"client.{name}", at) for name, at in OF_THE_CLIENT.items()), *INSIDE.items()],
)
def test_a_fault_in_drafting_ends_drafting_and_no_request(
    path: str, later: int, late: bool, method: str, plain: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    at = later if late else 1
    tripping: list[Tripping] = []
    ran = run(method, cycle, lambda controller: tripping.append(Tripping(*owner(controller, path), at)))
    assert ran.texts == plain
    tripped = tripping[0].calls >= at
    # How often auto asks depends on what steps of this machine cost; the others look nothing up.
    assert tripped or (late and method == "auto") or (path == "acceptance.of" and method == "ngram")
    assert ran.failed == tripped
    assert len([record for record in caplog.records if record.exc_info]) == tripped, "said once"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("path", "later"), BESIDE_A_DRAFTER.items())
def test_a_fault_beside_the_workers_head_ends_drafting_and_no_request(
    path: str, later: int, late: bool, plain: list[list[int]]
) -> None:
    tripping: list[Tripping] = []
    at = later if late else 1
    ran = run("auto", cycle, lambda controller: tripping.append(Tripping(controller, path, at)), WithDrafter)
    assert ran.texts == plain and ran.failed and tripping[0].calls == at


def test_a_fault_while_closing_the_link_ends_nothing(plain: list[list[int]]) -> None:
    assert run("ngram", cycle, lambda controller: Tripping(controller.client, "close", 2)).texts == plain


def test_where_nothing_fails_drafting_goes_on(plain: list[list[int]]) -> None:
    ran = run("ngram", cycle)
    assert ran.texts == plain and not ran.failed and ran.drafts > 50


def test_after_a_fault_no_sequence_gets_a_draft(plain: list[list[int]]) -> None:
    assert run("ngram", cycle, lambda controller: Tripping(controller, "draft", 1)).drafts == 0


def test_the_calls_named_here_are_all_there_are() -> None:
    def public(owner: type) -> set[str]:
        return {name for name in vars(owner) if not name.startswith("_")}

    assert public(Controller) == {*OF_THE_CONTROLLER, *BESIDE_A_DRAFTER}
    assert public(Proposers) == {*OF_THE_CLIENT, "close", *FIGURES}
    assert public(GuardedController) == {*OF_THE_CONTROLLER, *BESIDE_A_DRAFTER, "move_to", "tell", "close"}
