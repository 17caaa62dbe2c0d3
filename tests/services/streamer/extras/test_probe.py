"""The probe of workers with a clock moved by hand: when it asks, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from mesh_doubles.clock import FakeClock

from services.streamer.extras.probe import AGAIN, EVERY, Probe


class Workers:
    """What Peers.unanswered finds, and how often it was asked."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.asked = 0

    async def unanswered(self) -> list[str]:
        self.asked += 1
        return list(self.problems)


class Watched:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.workers = Workers()
        self.tokens = 0
        self.probe = Probe(self.workers.unanswered, lambda: self.tokens, self.clock)
        self.task = asyncio.ensure_future(self.probe.run())


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    yield watched
    watched.task.cancel()
    await asyncio.wait([watched.task])


async def test_idle_workers_are_asked_once_in_a_while(watched: Watched) -> None:
    await watched.clock.advance(EVERY * 10)
    assert watched.workers.asked == 10 and watched.probe.reasons == []


async def test_nobody_is_asked_while_tokens_come(watched: Watched) -> None:
    for _ in range(10):
        watched.tokens += 1
        await watched.clock.advance(EVERY)
    assert watched.workers.asked == 0
    await watched.clock.advance(EVERY)
    assert watched.workers.asked == 1


async def test_workers_that_do_not_answer_are_a_reason_until_they_do(watched: Watched) -> None:
    watched.workers.problems = ["worker: worker-1 doesn't answer (deadline)"]
    await watched.clock.advance(EVERY)
    assert watched.probe.reasons == watched.workers.problems
    watched.workers.problems = []
    await watched.clock.advance(AGAIN)
    assert watched.probe.reasons == []


async def test_tokens_that_come_are_a_better_answer(watched: Watched) -> None:
    watched.workers.problems = ["worker: worker-1 doesn't answer (deadline)"]
    await watched.clock.advance(EVERY)
    watched.tokens += 1
    await watched.clock.advance(AGAIN)
    assert watched.probe.reasons == [] and watched.workers.asked == 1
