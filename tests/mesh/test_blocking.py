"""The link of a thread without an event loop: answers, deadlines, halves, and a peer that restarts."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import zmq
from mesh_doubles.messages import Blob, Echo, Fail, Hang, RawFrame, Witness, codec, until

from mesh.blocking import MAX_TICKETS, BlockingLink
from mesh.envelope import MeshRecord, Reply, Welcome, encode_bundle
from mesh.errors import Busy, DeadlineExceeded, Insecure, MeshError, NotRunning, PeerLost, RemoteError, Stale

Mesh = Any  # the fixture of conftest.py


Links = list[BlockingLink]


@pytest.fixture
def links(zmq_mesh: Mesh) -> Iterator[Links]:
    made: Links = []
    yield made
    for link in made:
        link.close()


async def in_thread(call: Any, *arguments: Any, **more: Any) -> Any:
    return await asyncio.to_thread(call, *arguments, **more)


def link_to(links: Links, endpoint: str, actor: str = "witness", **more: Any) -> BlockingLink:
    links.append(BlockingLink(endpoint, actor, codec, "stepper", **more))
    return links[-1]


async def test_it_asks_and_gets_its_answer(zmq_mesh: Mesh, links: Links) -> None:
    far = await zmq_mesh.node("far")
    await far.spawn(Witness(), "witness")
    link = link_to(links, far.endpoint)
    for number in range(20):
        assert await in_thread(link.ask, Echo(number), timeout=5.0) == Echo(number)
    blob = Blob("t", RawFrame(bytes(200_000)))
    assert await in_thread(link.ask, blob, timeout=5.0) == blob


async def test_two_halves_overlap_and_may_come_back_in_any_order(zmq_mesh: Mesh, links: Links) -> None:
    far = await zmq_mesh.node("far")
    await far.spawn(Witness(), "witness")
    link = link_to(links, far.endpoint)
    await in_thread(link.ask, Echo(), timeout=5.0)
    tickets = [link.send(Echo(number)) for number in range(5)]
    answers = [await in_thread(link.receive, ticket, timeout=5.0) for ticket in reversed(tickets)]
    assert [answer.number for answer in answers] == [4, 3, 2, 1, 0]


async def test_one_may_look_whether_an_answer_has_arrived_without_losing_it(zmq_mesh: Mesh, links: Links) -> None:
    far = await zmq_mesh.node("far")
    await far.spawn(Witness(), "witness")
    link = link_to(links, far.endpoint)
    await in_thread(link.ask, Echo(), timeout=5.0)
    hanging, ticket = link.send(Hang()), link.send(Echo(7))
    assert not await in_thread(link.arrived, hanging, timeout=0.01)
    assert await in_thread(link.arrived, ticket, timeout=5.0)
    assert link.arrived(ticket, timeout=0.0) and not link.arrived(hanging, timeout=0.0)
    assert await in_thread(link.receive, ticket, timeout=0.0) == Echo(7)
    link.give_up(hanging)
    assert link.arrived(hanging, timeout=0.0), "receiving it says at once that it is void"


async def test_errors_are_those_of_an_ask(zmq_mesh: Mesh, links: Links) -> None:
    far = await zmq_mesh.node("far")
    await far.spawn(Witness(), "witness")
    with pytest.raises(RemoteError, match="too_long"):
        await in_thread(link_to(links, far.endpoint).ask, Fail("too_long"), timeout=5.0)
    with pytest.raises(NotRunning):
        await in_thread(link_to(links, far.endpoint, "nobody").ask, Echo(), timeout=5.0)


async def test_a_deadline_ends_the_wait_and_the_handler_and_the_late_reply_is_dropped(
    zmq_mesh: Mesh, links: Links
) -> None:
    far = await zmq_mesh.node("far")
    witness = Witness()
    await far.spawn(witness, "witness")
    link = link_to(links, far.endpoint)
    await in_thread(link.ask, Echo(), timeout=5.0)
    ticket = link.send(Hang(), timeout=60.0)
    with pytest.raises(DeadlineExceeded):
        await in_thread(link.receive, ticket, timeout=0.02)
    await asyncio.wait_for(witness.until("cancelled", 1), 5.0)
    late = link.send(Echo(1))
    with pytest.raises(DeadlineExceeded):
        link.receive(late, timeout=0)
    assert await in_thread(link.ask, Echo(2), timeout=5.0) == Echo(2)
    with pytest.raises(DeadlineExceeded, match="given up"):
        link.receive(late, timeout=1.0)


async def test_what_is_given_up_is_cancelled(zmq_mesh: Mesh, links: Links) -> None:
    far = await zmq_mesh.node("far")
    witness = Witness()
    await far.spawn(witness, "witness")
    link = link_to(links, far.endpoint)
    await in_thread(link.ask, Echo(), timeout=5.0)
    ticket = link.send(Hang(), timeout=60.0)
    await asyncio.wait_for(witness.until("started", 1), 5.0)
    link.give_up(ticket)
    link.give_up(ticket)
    await asyncio.wait_for(witness.until("cancelled", 1), 5.0)


async def test_nobody_there_is_a_lost_peer(zmq_mesh: Mesh, links: Links) -> None:
    link = link_to(links, zmq_mesh.endpoint("nowhere"))
    with pytest.raises(PeerLost):
        link.send(Echo())
    began = time.monotonic()
    with pytest.raises(PeerLost):
        await in_thread(link.ask, Echo(), timeout=0.05)
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("early", [True, False], ids=["made before its peer", "made after its peer"])
async def test_it_finds_a_restarted_peer_by_itself(early: bool, zmq_mesh: Mesh, links: Links) -> None:
    link = link_to(links, zmq_mesh.endpoint("far")) if early else None
    for life in range(5):
        far = await zmq_mesh.node("far")
        link = link or link_to(links, far.endpoint)
        await far.spawn(Witness(), "witness")
        async with asyncio.timeout(10.0):
            while True:
                try:
                    assert await in_thread(link.ask, Echo(life), timeout=0.5) == Echo(life)
                    break
                except MeshError:
                    continue
        ticket = link.send(Hang(), timeout=60.0)
        await until(lambda node=far: any(peer.busy for peer in node._accepted.values()))
        await far.stop(timeout=0.5)
        # Its last words may be lost with its socket; then the time given to the answer ends the wait.
        with pytest.raises((PeerLost, NotRunning, DeadlineExceeded)):
            await in_thread(link.receive, ticket, timeout=0.5)


async def test_a_blocking_peer_does_not_delay_the_stop_of_a_node(zmq_mesh: Mesh, links: Links) -> None:
    far = await zmq_mesh.node("far", timing=zmq_mesh.timing)
    await far.spawn(Witness(), "witness")
    await in_thread(link_to(links, far.endpoint).ask, Echo(), timeout=5.0)
    waits = [peer for peer in far._accepted.values() if not peer.blocking]
    assert waits == []
    await far.stop(timeout=5.0)


async def test_an_old_epoch_is_told_that_it_is_stale(zmq_mesh: Mesh, links: Links) -> None:
    far = await zmq_mesh.node("far")
    await far.spawn(Witness(), "witness")
    ghost, heir = link_to(links, far.endpoint, epoch=100), link_to(links, far.endpoint, epoch=200)
    await in_thread(ghost.ask, Echo(), timeout=5.0)
    await in_thread(heir.ask, Echo(), timeout=5.0)
    with pytest.raises(Stale):
        await in_thread(ghost.ask, Echo(), timeout=5.0)


class ByHand:
    """A wire whose far side says what the test wants. Implements mesh.blocking.Wire."""

    def __init__(self) -> None:
        self.coming: list[list[Any]] = []

    def say(self, *records: MeshRecord, epoch: int, to_epoch: int) -> None:
        self.coming.append(encode_bundle(epoch, to_epoch, records))

    def send(self, frames: Sequence[Any]) -> bool:
        return True

    def receive(self, timeout: float) -> Sequence[bytes] | None:
        return self.coming.pop(0) if self.coming else None

    def wait_until_open(self, timeout: float) -> bool:
        return True

    def now(self) -> float:
        return 0.0

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("epoch", "to_epoch", "why"),
    [(7, 99, "meant for an epoch that we have left"), (6, 100, "of an epoch that has a successor")],
)
def test_an_answer_of_another_life_is_dropped(epoch: int, to_epoch: int, why: str) -> None:
    wire = ByHand()
    link = BlockingLink("ipc:///far", "witness", codec, "stepper", 100, wire=wire)
    kind, body, _ = codec.encode(Echo(1))
    wire.say(Welcome("far", 7, 1), epoch=7, to_epoch=100)
    ticket = link.send(Echo(1))
    wire.say(Reply(ticket.id, kind, body), epoch=epoch, to_epoch=to_epoch)
    assert not link.arrived(ticket, timeout=0.0), why
    assert link.metrics.dropped == {"stale_epoch": 1}
    wire.say(Reply(ticket.id, kind, body), epoch=7, to_epoch=100)
    assert link.receive(ticket, timeout=0.0) == Echo(1)


async def test_without_an_epoch_it_does_not_pass_for_a_restart_of_the_node(zmq_mesh: Mesh, links: Links) -> None:
    far, stepper = await zmq_mesh.node("far"), await zmq_mesh.node("stepper")
    await far.spawn(Witness(), "witness")
    ref = stepper.ref(far.endpoint, "witness")
    await ref.ask(Echo(), timeout=5.0)
    for epoch in (None, stepper.epoch):
        await in_thread(link_to(links, far.endpoint, epoch=epoch).ask, Echo(), timeout=5.0)
        assert await ref.ask(Echo(1), timeout=5.0) == Echo(1)


async def test_tickets_are_bounded(zmq_mesh: Mesh, links: Links) -> None:
    far = await zmq_mesh.node("far")
    await far.spawn(Witness(mailbox_size=10_000), "witness")
    link = link_to(links, far.endpoint)
    await in_thread(link.ask, Echo(), timeout=5.0)

    def fill() -> None:
        for _ in range(MAX_TICKETS + 1):
            while True:
                try:
                    link.send(Hang(), timeout=5.0)
                    break
                except PeerLost:
                    time.sleep(0.001)  # the socket is full for the moment

    with pytest.raises(Busy):
        await in_thread(fill)


def test_beyond_the_host_it_needs_keys() -> None:
    with pytest.raises(Insecure):
        BlockingLink("tcp://127.0.0.1:9", "witness", codec, "stepper")


async def test_a_closed_link_is_forgotten(zmq_mesh: Mesh, links: Links) -> None:
    far = await zmq_mesh.node("far", timing=zmq_mesh.quick)
    await far.spawn(Witness(), "witness")
    link = link_to(links, far.endpoint)
    await in_thread(link.ask, Echo(), timeout=5.0)
    link.close()
    link.close()
    await until(lambda: not far._accepted)


def test_where_the_system_has_no_socket_left_the_peer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(context: Any, kind: int) -> Any:
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr(zmq.Context, "socket", none_left)
    with pytest.raises(PeerLost, match="no socket"):
        BlockingLink("ipc:///tmp/nobody", "witness", codec, "stepper")
