"""A candidate is asked what the proposer at work is asked, and takes over when its drafts stand as well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mesh_around import all_of, mesh_around, request, until

from services.api.drafts import DraftItem
from services.worker.scheduling.events import DraftAsk, DraftsReady
from services.worker.speculation.remote.succession import AS_GOOD, COMPARED, LOOKED_AT, Succession

SAYS = list(range(1000, 9000))


class Line:
    """A proposer's line whose drafts are right up to a place, and that answers when the test says."""

    def __init__(self) -> None:
        self.right = LOOKED_AT
        self.silent = False
        self.shadow = self.closed = self.gave_up = False
        self.endpoint = ""
        self.asked = 0
        self._open: list[tuple[int, int]] | None = None
        self.forgotten: list[int] = []

    def move_to(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def forget(self, sequence_ids: list[int], learned: list[Any]) -> None:
        self.forgotten += sequence_ids

    def ask(self, asks: list[DraftAsk], wait: float = 0.0) -> None:
        self.asked += 1
        self._open = [(ask.sequence.id, len(ask.sequence.token_ids) + len(ask.ahead)) for ask in asks]

    def ask_ahead(self, asks: list[DraftAsk]) -> None:
        self.ask(asks)

    def look(self) -> DraftsReady | None:
        asks, self._open = self._open, None
        if asks is None or self.silent:
            return None
        drafts = []
        for sequence_id, at in asks:
            draft = SAYS[at : at + self.right] + [-1] * (LOOKED_AT - self.right)
            drafts.append(DraftItem(sequence_id=sequence_id, committed=at, tokens=draft, source="line"))
        return DraftsReady(drafts)

    collect = look

    def expects(self) -> bool:
        return self.endpoint == "old"

    def rest(self) -> bool:
        return False

    def listens(self) -> bool:
        return not self.silent

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.took_over: list[str] = []
        made: Callable[[], Any] = self._line
        self.drafts = Succession(made, self.took_over.append)
        self.drafts.move_to("old")
        self.drafts.try_out("new")
        self.sequence = SimpleNamespace(id=1, token_ids=SAYS[:10])

    def _line(self) -> Line:
        self.lines.append(Line())
        return self.lines[-1]

    @property
    def old(self) -> Line:
        return self.lines[0]

    @property
    def new(self) -> Line:
        return self.lines[1]

    def steps(self, count: int, ahead: Sequence[int] = (), wrong: bool = False) -> None:
        """Ask, hear, and the text goes on, with what it says or with something else."""
        for _ in range(count):
            text = self.sequence.token_ids
            asked = DraftAsk(self.sequence, 8, list(ahead))  # type: ignore[arg-type]
            if ahead:
                self.drafts.ask_ahead([asked])
            else:
                self.drafts.ask([asked])
            assert self.drafts.look() is not None
            text += [-7] if wrong else SAYS[len(text) : len(text) + 1]


@pytest.fixture
def world() -> World:
    return World()


def test_one_that_does_as_well_takes_over_and_the_old_one_is_let_go(world: World) -> None:
    assert world.new.shadow and world.drafts.link is world.old
    world.steps(COMPARED + LOOKED_AT + 1)
    assert world.drafts.link is world.new and world.took_over == ["new"] and world.drafts.takeovers == 1
    assert world.old.closed and not world.new.closed and not world.new.shadow
    asked = world.old.asked, world.new.asked
    world.steps(5)
    assert (world.old.asked, world.new.asked) == (asked[0], asked[1] + 5)


@pytest.mark.parametrize("right", [0, 4, int(LOOKED_AT * AS_GOOD)])
def test_one_that_does_worse_stays_a_candidate_until_it_has_learned(world: World, right: int) -> None:
    world.new.right = right
    world.steps(3 * COMPARED)
    assert world.drafts.link is world.old and world.took_over == []
    assert world.drafts.share == pytest.approx(right / LOOKED_AT, abs=0.01)
    world.new.right, world.old.right = LOOKED_AT, LOOKED_AT // 2
    world.steps(3 * COMPARED)
    assert world.took_over == ["new"]


def test_one_that_says_nothing_is_not_compared(world: World) -> None:
    world.new.silent = True
    world.steps(3 * COMPARED)
    assert world.took_over == []


def test_what_was_asked_on_an_assumption_that_failed_says_nothing(world: World) -> None:
    world.new.right = 0
    world.steps(3 * COMPARED, ahead=[SAYS[0], SAYS[1]])
    assert world.drafts.share == 1.0 and world.took_over == []


def test_what_was_assumed_and_came_is_compared(world: World) -> None:
    for _ in range(COMPARED + 2 * LOOKED_AT):
        at = len(world.sequence.token_ids)
        world.steps(1, ahead=SAYS[at : at + 2])
    assert world.took_over == ["new"]


def test_ends_are_told_to_both_and_nothing_is_kept_of_them(world: World) -> None:
    world.steps(3)
    world.drafts.forget([1], [])
    assert world.old.forgotten == world.new.forgotten == [1]
    assert not world.drafts._pairs


def test_a_candidate_that_leaves_is_let_go(world: World) -> None:
    world.steps(COMPARED // 2)
    world.drafts.try_out("")
    assert world.new.closed and world.drafts.share == 0.0
    world.steps(2 * COMPARED)
    assert world.took_over == [] and world.drafts.link is world.old


async def test_over_the_mesh_a_successor_takes_over_while_requests_run_and_the_old_one_may_go(tmp_path: Path) -> None:
    async with mesh_around(tmp_path, method="ngram", num_speculative_tokens=4) as mesh:
        [plain] = await all_of(mesh, [request(max_tokens=300, method="naive")])
        wanted = [request(name=str(number), max_tokens=300) for number in range(4)]
        old = await mesh.start_proposer()
        new = await mesh.start_candidate()
        drafts: Any = mesh.target._steps._drafts.line  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            while not drafts.takeovers:
                assert all(answer.ids == plain.ids for answer in await all_of(mesh, wanted))
        await until(lambda: mesh.target._proposer == (new.endpoint, new.epoch))
        running = asyncio.create_task(all_of(mesh, wanted))
        await old.stop(0.1)
        mesh.directory.say("", 0)
        assert all(answer.ids == plain.ids for answer in await running)
        answered = drafts.link.answered
        assert all(answer.ids == plain.ids for answer in await all_of(mesh, wanted))
        assert drafts.link.answered > answered and drafts.link.endpoint == new.endpoint
