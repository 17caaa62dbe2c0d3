"""Messages that an actor answers as they are read: answers and errors are a handler's, and nothing is before them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from mesh_doubles.clock import FakeClock
from mesh_doubles.memory import MemoryNetwork
from mesh_doubles.messages import Blob, Count, Echo, Fail, Hang, Note, RawFrame, codec, until

from mesh.accepted import AcceptedPeer
from mesh.actor import Actor, Call
from mesh.address import routing_id
from mesh.envelope import (
    AskRecord,
    Cancel,
    Credit,
    DiallerBundle,
    Failure,
    Farewell,
    Hello,
    MeshRecord,
    Reply,
    Welcome,
    decode_for_dialler,
    encode_bundle,
)
from mesh.epoch import MAX_EPOCH
from mesh.errors import Draining, NotRunning, Refuse, RemoteError, UnknownKind
from mesh.node import Node
from mesh.transport import Frame, Sent

Mesh = Any  # the fixture of conftest.py


class AtOnce(Actor):
    answers: ClassVar = {Echo: "echo", Note: "note", Fail: "fail", Blob: "blob"}
    handlers: ClassVar = {Hang: "hang"}
    mailbox_size = 1

    def __init__(self) -> None:
        self.notes: list[int] = []
        self.hanging = 0

    def echo(self, message: Echo, call: Call) -> Echo:
        return message

    def note(self, message: Note, call: Call) -> None:
        self.notes.append(message.number)

    def fail(self, message: Fail, call: Call) -> None:
        if message.reason:
            raise Refuse(message.reason, "as asked")
        raise ZeroDivisionError("secret of this process")

    def blob(self, message: Blob, call: Call) -> Blob:
        return message

    async def hang(self, message: Hang, call: Call) -> None:
        self.hanging += 1
        await asyncio.get_running_loop().create_future()


async def test_the_answers_are_those_of_a_handler(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    actor = AtOnce()
    await far.spawn(actor, "quick")
    ref = near.ref(far.endpoint, "quick")
    assert await ref.ask(Echo(3, "x"), timeout=5.0) == Echo(3, "x")
    assert await ref.ask(Note(4), timeout=5.0) is None
    blob = Blob("t", RawFrame(bytes(200_000)))
    assert await ref.ask(blob, timeout=5.0) == blob
    assert actor.notes == [4]
    assert await asyncio.gather(*(ref.ask(Echo(number), timeout=5.0) for number in range(50))) == [
        Echo(number) for number in range(50)
    ]


async def test_the_errors_are_those_of_a_handler(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(AtOnce(), "quick")
    ref = near.ref(far.endpoint, "quick")
    with pytest.raises(RemoteError) as refused:
        await ref.ask(Fail("too_long"), timeout=5.0)
    assert (refused.value.reason, refused.value.message) == ("too_long", "as asked")
    with pytest.raises(RemoteError) as failed:
        await ref.ask(Fail(), timeout=5.0)
    assert (failed.value.reason, failed.value.message) == ("internal", "ZeroDivisionError")
    assert far.metrics.handler_errors == 1
    with pytest.raises(UnknownKind):
        await ref.ask(Count(1), timeout=5.0)


async def test_nothing_that_runs_or_waits_is_before_it(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    actor = AtOnce()
    await far.spawn(actor, "quick")
    ref = near.ref(far.endpoint, "quick")
    running = asyncio.create_task(ref.ask(Hang(1), timeout=60.0))
    await until(lambda: actor.hanging == 1)
    waiting = asyncio.create_task(ref.ask(Hang(2), timeout=60.0))
    await until(lambda: far._gauges().mailboxes == {"quick": 1})
    assert await ref.ask(Echo(7), timeout=5.0) == Echo(7)
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)


async def test_who_stops_answers_no_more(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(AtOnce(), "quick")
    ref = near.ref(far.endpoint, "quick")
    far.draining = True
    with pytest.raises(Draining):
        await ref.ask(Echo(), timeout=5.0)
    far.draining = False
    await far.stop_actor("quick")
    with pytest.raises(NotRunning):
        await ref.ask(Echo(), timeout=5.0)


# One bundle, read by a node whose transport is watched ------------------------------------------------------------


class Watched:
    """A node and a dialler made by hand."""

    IDENTITY = b"raw|1|1"

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self.sent = node, Sent.SENT
        self.bundles: list[DiallerBundle] = []
        self.welcome = Welcome(node.name, node.epoch, 1)
        monkeypatch.setattr(node._transport, "reply", self._reply)

    def _reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        assert routing_id == self.IDENTITY
        if self.sent is Sent.SENT:
            self.bundles.append(decode_for_dialler([bytes(frame) for frame in frames]))
        return self.sent

    def read(self, *records: MeshRecord, to_epoch: int = 0, hello: Hello | None = None) -> None:
        first = Hello("raw", 1) if hello is None else hello
        self.node.received(self.IDENTITY, encode_bundle(1, to_epoch, [first, *records]))

    def said(self) -> list[list[Any]]:
        """Since it was asked last, bundle by bundle."""
        said = [bundle.records for bundle in self.bundles]
        self.bundles.clear()
        return said

    @property
    def peer(self) -> AcceptedPeer:
        return self.node._accepted[self.IDENTITY]


def ask(id: int, message: Any, actor: str = "quick") -> AskRecord:
    kind, body, _ = codec.encode(message)
    return AskRecord(id, actor, kind, 60_000, body)


def reply(id: int, message: Any) -> Reply:
    kind, body, _ = codec.encode(message)
    return Reply(id, kind, body)


async def idle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def watched(still_node: Any, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A dialler that is known already."""
    node = await still_node(MemoryNetwork(), "far")
    await node.spawn(AtOnce(), "quick")
    made = Watched(node, monkeypatch)
    made.read()
    await idle()
    assert made.said() == [[made.welcome]]
    return made


async def test_the_answers_of_one_bundle_leave_together_as_it_is_read(watched: Watched) -> None:
    watched.read(*(ask(id, Echo(id)) for id in (1, 2, 3)))
    assert watched.said() == [[watched.welcome, *(reply(id, Echo(id)) for id in (1, 2, 3))]]
    watched.read(ask(3, Echo(3)))
    await idle()
    assert watched.said() == [[watched.welcome]], "a copy does nothing"


async def test_what_cannot_leave_yet_leaves_later(watched: Watched) -> None:
    watched.sent = Sent.FULL
    watched.read(ask(1, Echo(1)))
    assert watched.bundles == []
    watched.sent = Sent.SENT
    watched.node.writable()
    assert watched.said() == [[watched.welcome, reply(1, Echo(1))]]


async def test_a_caller_that_is_gone_is_forgotten_at_once(watched: Watched) -> None:
    watched.sent = Sent.GONE
    watched.read(ask(1, Echo(1)))
    assert not watched.node._accepted


async def test_an_answer_reaches_a_caller_that_leaves_in_the_same_bundle(watched: Watched) -> None:
    watched.read(ask(1, Echo(1)), Farewell())
    assert watched.said() == [[watched.welcome, reply(1, Echo(1)), Farewell()]]
    assert not watched.node._accepted


async def test_an_answer_is_counted(watched: Watched) -> None:
    question = ask(1, Echo(1))
    watched.read(question, ask(2, Note(3)))
    metrics = watched.node.metrics
    assert metrics.received_kinds["echo"] == [1, len(question.body)] and metrics.received_kinds["note"][0] == 1
    assert metrics.sent_kinds["echo"] == [1, len(question.body) + 32] and metrics.sent_kinds["done"] == [1, 32]
    assert metrics.bundles == {"received": 2, "sent": 2}


async def test_what_was_answered_before_nonsense_leaves(watched: Watched) -> None:
    watched.read(ask(1, Echo(1)), Credit([1]))
    await idle()
    assert watched.said() == [[watched.welcome, reply(1, Echo(1))]]
    assert watched.node.metrics.refused == {"malformed": 1}


async def test_a_hello_is_answered_in_the_bundle_of_the_answer(watched: Watched, clock: FakeClock) -> None:
    await clock.advance(0.01)
    for id in (1, 2, 3):
        watched.read(ask(id, Echo(id)))
        assert watched.said() == [[watched.welcome, reply(id, Echo(id))]]
    await idle()
    assert watched.said() == []
    assert watched.peer.heard == clock.now()


@pytest.mark.parametrize(
    "records",
    [[], [ask(1, Hang(1))], [ask(1, Echo(), actor="nobody")], [ask(1, Count(1))], [Cancel([9])]],
    ids=["nothing else", "a handler", "no actor", "no handler", "a cancel"],
)
async def test_a_hello_is_answered_where_nothing_else_is(watched: Watched, records: list[MeshRecord]) -> None:
    watched.read(*records)
    assert watched.bundles == []
    await idle()
    (said,) = watched.said()
    assert said[0] == watched.welcome and all(isinstance(record, Failure) for record in said[1:])


@pytest.mark.parametrize("what", ["for another epoch", "nonsense behind it"])
async def test_a_hello_is_answered_though_its_bundle_is_dropped(watched: Watched, what: str) -> None:
    if what == "nonsense behind it":
        watched.read(Credit([1]))
    else:
        watched.read(ask(1, Echo(1)), to_epoch=watched.node.epoch + 1)
    await idle()
    assert watched.said() == [[watched.welcome]]
    assert sum([*watched.node.metrics.refused.values(), *watched.node.metrics.dropped.values()]) == 1


async def test_the_hello_of_another_on_the_same_connection_is_refused(watched: Watched) -> None:
    for hello in (Hello("else", 1), Hello("raw", 2)):
        watched.node.metrics.refused.clear()
        watched.read(ask(1, Echo(1)), hello=hello)
        assert watched.node.metrics.refused == {"identity": 1, "stranger": 1}
    await idle()
    assert watched.said() == []


@pytest.mark.parametrize("epoch", [-1, MAX_EPOCH + 1])
async def test_an_epoch_that_none_could_follow_is_refused(watched: Watched, epoch: int) -> None:
    watched.node.received(routing_id("raw", epoch, 2), encode_bundle(1, 0, [Hello("raw", epoch)]))
    assert watched.node.metrics.refused == {"malformed": 1}


async def test_a_bundle_of_another_epoch_than_its_hello_is_dropped(watched: Watched) -> None:
    watched.node.received(Watched.IDENTITY, encode_bundle(2, 0, [ask(1, Echo(1))]))
    assert watched.node.metrics.dropped == {"stale_epoch": 1}
    await idle()
    assert watched.said() == []
