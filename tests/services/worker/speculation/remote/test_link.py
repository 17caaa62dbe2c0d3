"""The link of a thread without an event loop: answers, deadlines, halves, and a peer that restarts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from mesh_doubles.messages import Blob, Count, Echo, Fail, Hang, RawFrame, Witness, codec, until

from mesh.errors import DeadlineExceeded, MeshError, NotReached, NotRunning, PeerLost, RemoteError, UnknownKind
from mesh.node import Node
from mesh.transport.zmq import ZmqTransport
from services.worker.speculation.remote.link import LoopLink

PATIENCE = 10.0


class World:
    """A node whose engine's thread asks a witness on another one."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder / 'far'}"
        self.near = Node(ZmqTransport(), codec, name="near")
        self.witness = Witness()

    async def begins(self) -> None:
        """The far node; another life after `ends`."""
        self.far = Node(ZmqTransport(), codec, name="far")
        await self.far.start(self.endpoint)
        await self.far.spawn(self.witness, "witness")

    async def ends(self) -> None:
        await self.far.stop(timeout=0.5)

    async def link(self, actor: str = "witness") -> LoopLink:
        """One with a connection."""
        link = LoopLink(self.near, self.endpoint, actor, asyncio.get_running_loop().call_soon_threadsafe)
        await until(lambda: self.near.peer(self.endpoint).reachable)
        return link


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.near.start()
    await made.begins()
    yield made
    await made.near.stop(timeout=1.0)
    await made.ends()


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.wait_for(asyncio.to_thread(call, *arguments), PATIENCE)


async def asked(link: LoopLink, message: Any) -> Any:
    return await in_thread(lambda: link.receive(link.send(message), PATIENCE))


async def test_a_thread_asks_and_gets_its_answer(world: World) -> None:
    link = await world.link()
    for number in range(20):
        assert await asked(link, Echo(number)) == Echo(number)
    blob = Blob("t", RawFrame(bytes(200_000)))
    assert await asked(link, blob) == blob
    assert world.near.metrics.round_trips["echo"]


async def test_answers_come_while_the_thread_does_something_else_and_in_any_order(world: World) -> None:
    link = await world.link()
    tickets = [link.send(Echo(number)) for number in range(5)]
    hanging = link.send(Hang())
    await until(lambda: all(link.arrived(ticket) for ticket in tickets))
    assert [link.receive(ticket, 0.0).number for ticket in reversed(tickets)] == [4, 3, 2, 1, 0]
    assert not link.arrived(hanging)


@pytest.mark.parametrize(
    ("actor", "message", "error"),
    [("witness", Fail("too_long"), RemoteError), ("nobody", Echo(), NotRunning), ("witness", object(), UnknownKind)],
    ids=["refused", "no actor", "no message"],
)
async def test_the_errors_are_those_of_an_ask(world: World, actor: str, message: Any, error: type[MeshError]) -> None:
    with pytest.raises(error):
        await asked(await world.link(actor), message)


async def test_a_deadline_ends_the_wait_and_the_far_handler(world: World) -> None:
    link = await world.link()
    ticket = link.send(Hang())
    await asyncio.wait_for(world.witness.until("started", 1), PATIENCE)
    with pytest.raises(DeadlineExceeded):
        await in_thread(link.receive, ticket, 0.01)
    await asyncio.wait_for(world.witness.until("cancelled", 1), PATIENCE)
    assert await asked(link, Echo(2)) == Echo(2)


async def test_what_is_given_up_is_cancelled(world: World) -> None:
    link = await world.link()
    ticket = link.send(Hang())
    await asyncio.wait_for(world.witness.until("started", 1), PATIENCE)
    link.give_up(ticket)
    link.give_up(ticket)
    await asyncio.wait_for(world.witness.until("cancelled", 1), PATIENCE)
    assert not world.near.peer(world.endpoint).busy


async def test_what_is_given_up_before_the_loop_has_sent_it_leaves_nothing_open(world: World) -> None:
    link = await world.link()
    link.give_up(link.send(Hang()))
    assert await asked(link, Echo(1)) == Echo(1)
    assert not world.near.peer(world.endpoint).busy


async def test_without_a_connection_an_ask_fails_at_once_and_another_is_made(world: World) -> None:
    link = await world.link()
    await world.ends()
    await until(lambda: not world.near.peer(world.endpoint).reachable)
    with pytest.raises(NotReached, match=f"no connection to {re.escape(world.endpoint)}$"):
        await asked(link, Echo())
    await world.begins()
    await until(lambda: world.near.peer(world.endpoint).reachable)
    assert await asked(link, Echo(1)) == Echo(1)


async def test_one_that_dies_ends_what_was_asked(world: World) -> None:
    link = await world.link()
    ticket = link.send(Hang())
    await asyncio.wait_for(world.witness.until("started", 1), PATIENCE)
    await world.ends()
    with pytest.raises((PeerLost, NotRunning)):
        await in_thread(link.receive, ticket, PATIENCE)


async def test_when_its_node_has_stopped_every_ask_ends(world: World) -> None:
    link = await world.link()
    open_one = link.send(Hang())
    await asyncio.wait_for(world.witness.until("started", 1), PATIENCE)
    await world.near.stop(timeout=0.5)
    for ticket in (open_one, link.send(Echo())):
        with pytest.raises((PeerLost, NotRunning)):
            await in_thread(link.receive, ticket, PATIENCE)


async def test_an_address_that_needs_keys_costs_the_ask_and_nothing_else(world: World) -> None:
    link = LoopLink(world.near, "tcp://127.0.0.1:9", "witness", asyncio.get_running_loop().call_soon_threadsafe)
    with pytest.raises(MeshError, match="keys"):
        await asked(link, Count(1))
