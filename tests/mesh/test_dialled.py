"""A dialler and an acceptor made by hand, which says whatever the test wants, on a network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from mesh_doubles.clock import FakeClock
from mesh_doubles.memory import MemoryNetwork
from mesh_doubles.messages import Echo, codec

from mesh.envelope import (
    AskRecord,
    Cancel,
    Farewell,
    Hello,
    MeshRecord,
    Reply,
    Welcome,
    decode_for_acceptor,
    encode_bundle,
)
from mesh.errors import DeadlineExceeded, Malformed, PeerLost


class ByHand:
    """Implements mesh.transport.Listener."""

    def __init__(self, clock: FakeClock, near: Any, network: MemoryNetwork) -> None:
        self.clock, self.near, self.network = clock, near, network
        self._transport = network.transport()
        self.heard: list[tuple[bytes, MeshRecord]] = []

    async def binds(self) -> None:
        await self._transport.bind("mem://by-hand", self)

    def received(self, routing_id: bytes, frames: Sequence[bytes]) -> None:
        self.heard += [(routing_id, record) for record in decode_for_acceptor(frames).records]

    def refused(self, reason: str) -> None: ...
    def writable(self) -> None: ...
    def disconnected(self) -> None: ...

    async def asked(self) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(self.near.ref("mem://by-hand", "actor").ask(Echo(1), timeout=60.0))
        await self.clock.settle()
        return task

    def asks(self) -> list[tuple[bytes, AskRecord]]:
        return [(who, record) for who, record in self.heard if isinstance(record, AskRecord)]

    async def say(self, *records: MeshRecord, epoch: int = 7, to_epoch: int | None = None) -> None:
        to_epoch = self.near.epoch if to_epoch is None else to_epoch
        self._transport.reply(self.heard[-1][0], encode_bundle(epoch, to_epoch, records))
        await self.clock.settle()

    def answer(self) -> Reply:
        """To the last ask."""
        kind, body, _ = codec.encode(Echo(1))
        return Reply(self.asks()[-1][1].id, kind, body)

    @property
    def dropped(self) -> int:
        return int(self.near.metrics.dropped.get("stale_epoch", 0))


WELCOME = Welcome("by-hand", 7, 1)


@pytest.fixture
async def far(still_node: Any, clock: FakeClock) -> ByHand:
    network = MemoryNetwork(clock=clock)
    made = ByHand(clock, await still_node(network, "near"), network)
    await made.binds()
    return made


async def test_a_first_bundle_begins_with_hello_and_goes_on_with_the_call(far: ByHand) -> None:
    asking = await far.asked()
    assert [type(record) for _, record in far.heard][:1] == [Hello] and len(far.asks()) == 1
    await far.say(WELCOME, far.answer())
    assert asking.result() == Echo(1)


async def test_an_answer_meant_for_another_epoch_is_dropped(far: ByHand) -> None:
    asking = await far.asked()
    await far.say(WELCOME, far.answer(), to_epoch=far.near.epoch - 1)
    assert not asking.done() and far.dropped == 1
    await far.say(WELCOME, far.answer())
    assert asking.result() == Echo(1)


async def test_an_answer_of_an_epoch_that_has_not_said_welcome_is_dropped(far: ByHand) -> None:
    asking = await far.asked()
    await far.say(far.answer())
    assert not asking.done() and far.dropped == 1
    await far.say(WELCOME)
    await far.say(far.answer(), epoch=8)
    assert not asking.done() and far.dropped == 2
    await far.say(far.answer())
    assert asking.result() == Echo(1)


async def test_an_older_epoch_than_one_that_was_there_is_dropped(far: ByHand) -> None:
    asking = await far.asked()
    await far.say(WELCOME, far.answer())
    assert asking.result() == Echo(1)
    asking = await far.asked()
    await far.say(Welcome("by-hand", 6, 1), far.answer(), epoch=6)
    assert not asking.done() and far.dropped == 1
    asking.cancel()


@pytest.mark.parametrize(("epoch", "session"), [(7, 2), (8, 1)])
async def test_another_session_or_epoch_ends_what_is_open(far: ByHand, epoch: int, session: int) -> None:
    asking = await far.asked()
    await far.say(WELCOME)
    await far.say(Welcome("by-hand", epoch, session), epoch=epoch)
    with pytest.raises(PeerLost, match="forgotten"):
        asking.result()
    asking = await far.asked()
    await far.say(far.answer(), epoch=epoch)
    assert asking.result() == Echo(1)


async def test_a_call_that_waited_for_a_peer_that_was_lost_is_not_made_at_its_successor(far: ByHand) -> None:
    far.network.hold("mem://by-hand")
    waiting = await far.asked()
    assert far.heard == []
    far.network.cut("mem://by-hand")
    with pytest.raises(PeerLost):
        await waiting
    far.network.release("mem://by-hand")
    far.network.mend("mem://by-hand")
    asking = await far.asked()
    assert [record.id for _, record in far.asks()] == [2]
    await far.say(WELCOME, far.answer())
    assert asking.result() == Echo(1)


async def test_an_ask_without_a_task_is_told_its_end_once_and_never_after_it_is_cancelled(far: ByHand) -> None:
    peer, told = far.near.peer("mem://by-hand"), []
    ids = [peer.begin_ask("actor", Echo(1), timeout, told.append) for timeout in (60.0, 60.0, 1.0, 60.0)]
    await far.clock.settle()
    peer.cancel_ask(ids[1])
    kind, body, _ = codec.encode(Echo(1))
    await far.say(WELCOME, *(Reply(id, kind, body) for id in (ids[0], ids[0], ids[1])))
    assert told == [Echo(1)] and far.near.metrics.dropped == {"late_answer": 2}
    assert [record.ids for _, record in far.heard if isinstance(record, Cancel)] == [[ids[1]]]
    await far.clock.advance(1.0)
    assert [type(each) for each in told[1:]] == [DeadlineExceeded]
    await far.say(Farewell())
    assert [type(each) for each in told[2:]] == [PeerLost]
    peer.cancel_ask(ids[3])
    await far.clock.advance(60.0)
    assert len(told) == 3 and not peer.busy
    assert far.near.metrics.dropped == {"late_answer": 2}, "no timer of theirs is left"


async def test_an_answer_that_cannot_be_read_ends_its_ask(far: ByHand) -> None:
    asking = await far.asked()
    await far.say(WELCOME, Reply(far.asks()[-1][1].id, "echo", b"\xc1"))
    with pytest.raises(Malformed):
        asking.result()


async def test_while_calls_are_open_it_says_hello_and_when_idle_nothing(far: ByHand) -> None:
    asking = await far.asked()
    await far.say(WELCOME)
    far.heard[:-1] = []
    await far.clock.advance(2.0)
    assert 3 <= sum(isinstance(record, Hello) for _, record in far.heard) <= 5
    await far.say(far.answer()) if far.asks() else asking.cancel()
    await far.clock.settle()
    far.heard.clear()
    await far.clock.advance(2.0)
    assert far.heard == []


async def test_after_a_farewell_calls_wait_for_the_next_connection_but_not_for_ever(far: ByHand) -> None:
    first = await far.asked()
    await far.say(WELCOME, Farewell())
    with pytest.raises(PeerLost, match="left"):
        first.result()
    assert isinstance(far.heard[-1][1], Farewell)
    second = await far.asked()
    assert len(far.asks()) == 1, "this connection leads to the one that leaves"
    # It said so and did not close: another connection is made all the same.
    timing = far.near.timing
    await far.clock.advance(timing.farewell + timing.linger + 2 * timing.sweep)
    (old, _), (new, _) = far.asks()
    assert old != new
    await far.say(Welcome("by-hand", 8, 1), far.answer(), epoch=8)
    assert second.result() == Echo(1)
