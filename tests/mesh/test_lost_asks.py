"""An ask that a network swallows, or its answer, costs a moment and not the whole time that was given; it is still made
at most once. Time stands still, and the tests decide what is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from mesh.clock import FakeClock
from mesh.errors import DeadlineExceeded, PeerLost
from mesh.memory_transport import MemoryNetwork, MemoryTransport
from mesh.node import Node
from mesh.ref import Ref
from mesh.session import Timing
from mesh.testing import Echo, Hang, Witness
from mesh.transport import Sent

MakeNode = Callable[..., Awaitable[Node]]
AGAIN = Timing().again
SWEEP = Timing().sweep


class Pair:
    """Two nodes that know each other already, and a witness on the far one."""

    def __init__(self, network: MemoryNetwork, clock: FakeClock, near: Node, far: Node) -> None:
        self.network, self.clock, self.near, self.far = network, clock, near, far
        self.witness = Witness()

    @property
    def ref(self) -> Ref:
        return self.near.ref(self.far.endpoint, "witness")

    async def begin(self, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """The call's words have left, and have arrived where nothing swallows them."""
        task = asyncio.create_task(call)
        await self.clock.settle()
        return task

    async def until_said_again(self) -> None:
        await self.clock.advance(AGAIN + 2 * SWEEP)


@pytest.fixture
async def pair(still_node: MakeNode, clock: FakeClock) -> Pair:
    network = MemoryNetwork(clock=clock)
    pair = Pair(network, clock, await still_node(network, "near"), await still_node(network, "far"))
    await pair.far.spawn(pair.witness, "witness")
    assert await pair.ref.ask(Echo(0), timeout=10.0) == Echo(0)
    return pair


async def test_a_lost_ask_is_said_again(pair: Pair) -> None:
    pair.network.drop = 1.0
    asking = await pair.begin(pair.ref.ask(Echo(1), timeout=10.0))
    pair.network.drop = 0.0
    assert len(pair.witness.calls) == 1, "it did not arrive"
    await pair.until_said_again()
    assert asking.done() and await asking == Echo(1)
    assert len(pair.witness.calls) == 2


async def test_whose_answer_is_lost_hears_that_and_the_handler_does_not_run_again(pair: Pair) -> None:
    carry = pair.network.carry

    def swallow_answers(endpoint: str, deliver: Any, frames: Any) -> None:
        if deliver.__name__ != "arrive":
            carry(endpoint, deliver, frames)

    pair.network.carry = swallow_answers  # type: ignore[method-assign]
    asking = await pair.begin(pair.ref.ask(Echo(1), timeout=10.0))
    pair.network.carry = carry  # type: ignore[method-assign]
    assert not asking.done()
    await pair.until_said_again()
    assert asking.done()
    with pytest.raises(PeerLost, match="answer"):
        await asking
    assert len(pair.witness.calls) == 2, "the first of them is the pair's own"


async def test_an_answer_that_cannot_leave_yet_is_not_lost(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(MemoryTransport, "reply", lambda *_: Sent.FULL)
        asking = [await pair.begin(pair.ref.ask(Echo(number), timeout=10.0)) for number in range(3)]
        await pair.until_said_again()
    assert pair.far.metrics.dropped["duplicate_ask"] == 3
    pair.far.writable()
    await pair.clock.settle()
    assert [each.result() for each in asking if each.done()] == [Echo(0), Echo(1), Echo(2)]


async def test_one_that_takes_long_is_not_made_twice(pair: Pair) -> None:
    asking = await pair.begin(pair.ref.ask(Hang(), timeout=10.0))
    await pair.clock.advance(5.0)
    assert pair.witness.started == 1 and not asking.done()
    assert pair.far.metrics.dropped["duplicate_ask"] >= 3
    await pair.clock.advance(5.0)
    with pytest.raises(DeadlineExceeded):
        await asking
    assert pair.witness.cancelled == 1


async def test_one_said_again_gives_its_handler_no_more_time_than_is_left(pair: Pair) -> None:
    pair.network.drop = 1.0
    asking = await pair.begin(pair.ref.ask(Hang(), timeout=3.0))
    pair.network.drop = 0.0
    await pair.clock.advance(2.99)
    assert pair.witness.started == 1 and pair.witness.cancelled == 0
    await pair.clock.advance(0.02)
    assert pair.witness.cancelled == 1
    with pytest.raises(DeadlineExceeded):
        await asking


@pytest.mark.parametrize("seed", range(20))
async def test_in_a_lossy_network_who_asks_until_answered_is_answered_soon(
    still_node: MakeNode, clock: FakeClock, seed: int
) -> None:
    network = MemoryNetwork(seed, drop=0.3, clock=clock)
    near, far = await still_node(network, "near"), await still_node(network, "far")
    witness = Witness()
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")

    async def ask(number: int) -> int:
        tries = 1
        while True:
            try:
                assert await ref.ask(Echo(number), timeout=60.0) == Echo(number)
                return tries
            except PeerLost:
                tries += 1

    asking = asyncio.gather(*(ask(number) for number in range(5)))
    await clock.advance(60.0)
    assert len(witness.calls) <= sum(asking.result())
