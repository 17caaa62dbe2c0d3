from __future__ import annotations

import os
import signal

import pytest
from mesh_doubles.clock import FakeClock
from mesh_doubles.memory import MemoryNetwork

from mesh.codec import Codec
from mesh.errors import RemoteError
from mesh.node import Node
from mesh.ref import Ref
from services.api.messages import KINDS, Dying, Kill, Look, Seen
from services.runtime.introspection import (
    INTROSPECTION,
    LAST_WORD,
    LOOK_BACK,
    MOST_FIGURES,
    TOO_OLD,
    Figures,
    Introspection,
)


class Opened:
    """A window on a node of its own; the test sets what its process does."""

    def __init__(self, *, demo: bool = False) -> None:
        self.clock = FakeClock()
        self.figures = Figures()
        self.killed: list[tuple[int, int]] = []
        kill = self.killed.append
        self.window = Introspection(
            lambda: Figures(dict(self.figures.now), dict(self.figures.totals)),
            demo=demo,
            clock=self.clock,
            kill=lambda pid, number: kill((pid, number)),
        )
        self.node = Node(MemoryNetwork().transport(), Codec(KINDS), name="worker-1")

    async def open(self) -> Ref:
        await self.node.start("mem://worker-1")
        return await self.node.spawn(self.window, INTROSPECTION)

    async def look(self) -> Seen:
        answer = await self.node.ref("mem://worker-1", INTROSPECTION).ask(Look(), timeout=1.0)
        assert isinstance(answer, Seen)
        return answer


@pytest.fixture
def opened() -> Opened:
    return Opened()


async def test_the_first_look_sees_what_is_and_nothing_of_how_it_changes(opened: Opened) -> None:
    await opened.open()
    opened.figures = Figures({"running": 3}, {"tokens": 100})
    seen = await opened.look()
    assert (seen.figures, seen.totals, seen.earlier, seen.span) == ({"running": 3}, {"tokens": 100}, {}, 0.0)
    await opened.node.stop()


async def test_later_looks_are_compared_with_what_was_seen_about_two_seconds_before(opened: Opened) -> None:
    await opened.open()
    for second in range(8):
        opened.figures.totals = {"tokens": 100.0 * second}
        seen = await opened.look()
        await opened.clock.advance(1.0)
    assert seen.span == LOOK_BACK
    assert seen.totals["tokens"] - seen.earlier["tokens"] == 100 * LOOK_BACK
    await opened.node.stop()


async def test_what_was_seen_long_ago_says_nothing_of_now(opened: Opened) -> None:
    await opened.open()
    await opened.look()
    await opened.clock.advance(TOO_OLD + 0.1)
    assert (await opened.look()).span == 0.0
    await opened.node.stop()


async def test_names_that_are_a_peers_do_not_make_the_answer_grow(opened: Opened) -> None:
    await opened.open()
    opened.figures.totals = {f"accepted:{name}": 1.0 for name in range(1000)}
    for _ in range(1000):
        seen = await opened.look()
    assert len(seen.totals) == MOST_FIGURES
    assert len(opened.window._notes) == 1
    await opened.node.stop()


async def test_a_process_that_was_not_started_for_it_cannot_be_killed(opened: Opened) -> None:
    ref = await opened.open()
    with pytest.raises(RemoteError, match="demo"):
        await ref.ask(Kill(), timeout=1.0)
    await opened.clock.advance(1.0)
    assert opened.killed == []
    await opened.node.stop()


async def test_with_demo_it_says_so_and_dies_as_by_kill_9() -> None:
    opened = Opened(demo=True)
    ref = await opened.open()
    assert await ref.ask(Kill(), timeout=1.0) == Dying(pid=os.getpid())
    await opened.clock.advance(LAST_WORD)
    assert opened.killed == [(os.getpid(), signal.SIGKILL)]
    await opened.node.stop()
