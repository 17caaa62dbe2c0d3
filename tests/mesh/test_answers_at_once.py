"""Messages that an actor answers as they are read: answers and errors are a handler's, and nothing is before them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from mesh.accepted import AcceptedPeer
from mesh.actor import Actor, Call
from mesh.blocking import BlockingLink
from mesh.clock import FakeClock
from mesh.envelope import (
    BLOCKING,
    RESUME,
    Acks,
    Ask,
    Cancel,
    DiallerBundle,
    Failure,
    Farewell,
    Gone,
    Hello,
    Record,
    Reply,
    Tell,
    Welcome,
    decode_for_dialler,
    encode_bundle,
)
from mesh.errors import Draining, NotRunning, Refuse, RemoteError, UnknownKind
from mesh.hatch_wire import HatchWire
from mesh.memory_transport import MemoryNetwork
from mesh.node import Node
from mesh.testing import Blob, Buffer, Count, Echo, Fail, Hang, Note, codec, until
from mesh.transport import Frame, Sent
from mesh.zmq_wire import ZmqWire

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
    blob = Blob("t", Buffer(bytes(200_000)))
    assert await ref.ask(blob, timeout=5.0) == blob
    ref.tell(Note(5))
    await until(lambda: actor.notes == [4, 5])
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
    ref.tell(Fail("nobody hears it"))
    assert await ref.ask(Echo(1), timeout=5.0) == Echo(1)


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


async def test_a_blocking_link_reads_one_bundle_for_an_answer(linked_mesh: Mesh) -> None:
    """Its Hello is answered, too: in the same bundle."""
    far = await linked_mesh.node("far")
    await far.spawn(AtOnce(), "quick")
    link = BlockingLink(far.endpoint, "quick", codec, "stepper")
    try:
        assert isinstance(link._wire, HatchWire if linked_mesh.kind == "hatch" else ZmqWire)
        for number in range(20):
            assert await asyncio.to_thread(link.ask, Echo(number), timeout=5.0) == Echo(number)
        assert link.metrics.bundles["received"] == 20
        with pytest.raises(RemoteError, match="too_long"):
            await asyncio.to_thread(link.ask, Fail("too_long"), timeout=5.0)
        assert link.metrics.bundles["received"] == 21
    finally:
        link.close()


# One bundle, read by a node whose transport is watched ------------------------------------------------------------


class Watched:
    """A node and a dialler made by hand. `order`: what happened, the bundles that left among it."""

    IDENTITY = b"raw|1|1"

    def __init__(self, node: Node, order: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self.order, self.sent = node, order, Sent.SENT
        self.bundles: list[DiallerBundle] = []
        self.welcome = Welcome(node.name, node.epoch, 1)
        monkeypatch.setattr(node._transport, "reply", self._reply)

    def _reply(self, routing_id: bytes, frames: Sequence[Frame]) -> Sent:
        assert routing_id == self.IDENTITY
        self.order.append(self.sent)
        if self.sent is Sent.SENT:
            self.bundles.append(decode_for_dialler([bytes(frame) for frame in frames]))
        return self.sent

    def read(self, *records: Record, to_epoch: int = 0, hello: Hello | None = None) -> None:
        first = Hello("raw", 1, BLOCKING) if hello is None else hello
        self.node.received(self.IDENTITY, encode_bundle(1, to_epoch, [first, *records]))

    def said(self) -> list[list[Any]]:
        """Since it was asked last, bundle by bundle."""
        said = [bundle.records for bundle in self.bundles]
        self.bundles.clear()
        self.order.clear()
        return said

    @property
    def peer(self) -> AcceptedPeer:
        return self.node._accepted[self.IDENTITY]


class PutsOff(AtOnce):
    """Puts something off for each question, which fails where the number is negative."""

    def __init__(self, order: list[Any]) -> None:
        super().__init__()
        self.order = order

    def echo(self, message: Echo, call: Call) -> Echo:
        self.order.append(message.number)

        def later() -> None:
            self.order.append(f"after {message.number}")
            if message.number < 0:
                raise ZeroDivisionError

        call.afterwards = later
        if message.text == "awaited":
            call.awaited = 1.0
        if message.text == "refused":
            raise Refuse("refused", "as asked")
        return message


def ask(id: int, message: Any, actor: str = "quick") -> Ask:
    kind, body, _ = codec.encode(message)
    return Ask(id, actor, kind, 60_000, body)


def tell(id: int, message: Any) -> Tell:
    kind, body, _ = codec.encode(message)
    return Tell(id, "quick", kind, body)


def reply(id: int, message: Any) -> Reply:
    kind, body, _ = codec.encode(message)
    return Reply(id, kind, body)


async def idle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def watched(still_node: Any, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """It is known already."""
    order: list[Any] = []
    node = await still_node(MemoryNetwork(), "far")
    await node.spawn(PutsOff(order), "quick")
    made = Watched(node, order, monkeypatch)
    made.read()
    await idle()
    assert made.said() == [[made.welcome]]
    return made


async def test_what_is_put_off_is_done_when_the_answer_has_left_and_once(watched: Watched) -> None:
    watched.read(ask(1, Echo(1)))
    assert watched.order == [1, Sent.SENT, "after 1"]
    await idle()
    assert watched.order == [1, Sent.SENT, "after 1"]
    watched.read(ask(1, Echo(1)))
    assert watched.order == [1, Sent.SENT, "after 1"], "a copy does nothing again"


async def test_of_several_it_is_done_in_order_when_all_answers_have_left(watched: Watched) -> None:
    watched.read(*(ask(id, Echo(id)) for id in (1, 2, 3)))
    assert watched.order == [1, 2, 3, Sent.SENT, "after 1", "after 2", "after 3"]
    assert watched.said() == [[watched.welcome, *(reply(id, Echo(id)) for id in (1, 2, 3))]]


@pytest.mark.parametrize("sent", [Sent.GONE, Sent.FULL])
async def test_it_is_done_though_nobody_can_be_reached_or_not_yet(watched: Watched, sent: Sent) -> None:
    watched.sent = sent
    watched.read(ask(1, Echo(1)))
    assert watched.order == [1, sent, "after 1"]
    assert (watched.peer.gone_since is not None) == (sent is Sent.GONE)
    watched.sent = Sent.SENT
    watched.node.writable()
    assert watched.order == [1, sent, "after 1", Sent.SENT]
    assert watched.said() == [[watched.welcome, reply(1, Echo(1))]]


async def test_it_is_done_though_the_caller_leaves_in_the_same_bundle(watched: Watched) -> None:
    watched.read(ask(1, Echo(1)), Farewell())
    assert watched.said() == [[watched.welcome, reply(1, Echo(1)), Farewell()]]
    assert not watched.node._accepted


async def test_a_fault_in_it_is_counted_and_harms_nobody(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.read(ask(1, Echo(-1)), ask(2, Echo(2)))
    assert watched.order == [-1, 2, Sent.SENT, "after -1", "after 2"]
    assert watched.said() == [[watched.welcome, reply(1, Echo(-1)), reply(2, Echo(2))]]
    assert watched.node.metrics.handler_errors == 1 and "failed after its answer" in caplog.text
    assert not watched.node.metrics.refused


async def test_of_a_handler_that_refuses_nothing_was_put_off(watched: Watched) -> None:
    watched.read(ask(1, Echo(1, "refused")))
    await idle()
    assert watched.order == [1, Sent.SENT]
    assert watched.said() == [[watched.welcome, Failure(1, "refused", "as asked")]]


async def test_of_a_tell_it_is_done_right_after_the_handler(watched: Watched) -> None:
    watched.read(tell(1, Echo(1)), tell(2, Echo(-2)), tell(3, Echo(3, "refused")), tell(4, Echo(4)))
    assert watched.order == [1, "after 1", -2, "after -2", 3, 4, "after 4"]
    assert watched.node.metrics.handler_errors == 1
    await idle()
    assert watched.said() == [[watched.welcome]]


async def test_what_is_counted_is_counted_and_who_is_awaited_is_before_it_is_done(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched.node._transport, "stay_awake", lambda *what: watched.order.append(what))
    question = ask(1, Echo(1, "awaited"))
    watched.read(question, ask(2, Note(3)))
    assert watched.order == [1, Sent.SENT, (Watched.IDENTITY, 1.0), "after 1"]
    metrics = watched.node.metrics
    assert metrics.received_kinds["echo"] == [1, len(question.body)] and metrics.received_kinds["note"][0] == 1
    assert metrics.sent_kinds["echo"] == [1, len(question.body) + 32] and metrics.sent_kinds["done"] == [1, 32]
    assert metrics.bundles == {"received": 2, "sent": 2}


async def test_what_was_answered_before_nonsense_leaves_at_once(watched: Watched) -> None:
    watched.read(ask(1, Echo(1)), Acks([1]))
    assert watched.order == [1, Sent.SENT, "after 1"]
    assert watched.node.metrics.refused == {"malformed": 1}


async def test_a_hello_that_says_nothing_new_is_answered_in_the_bundle_of_the_answer(
    watched: Watched, clock: FakeClock
) -> None:
    await clock.advance(0.01)
    watched.peer.gone_since = clock.now()
    for id in (1, 2, 3):
        watched.read(ask(id, Echo(id)))
        assert watched.said() == [[watched.welcome, reply(id, Echo(id))]]
    await idle()
    assert watched.said() == []
    assert watched.peer.heard == clock.now() and watched.peer.gone_since is None


@pytest.mark.parametrize("message", [Echo(1), Echo(1, "refused"), Fail()], ids=["answer", "refusal", "fault"])
async def test_what_is_flushed_as_it_is_read_is_not_flushed_again(
    watched: Watched, message: Echo | Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_soon", lambda *what, **more: scheduled.append(what))
        watched.read(ask(1, message))
    assert scheduled == [] and len(watched.bundles) == 1


@pytest.mark.parametrize(
    "records",
    [[], [ask(1, Hang(1))], [ask(1, Echo(), actor="nobody")], [ask(1, Count(1))], [tell(1, Echo())], [Cancel([9])]],
    ids=["nothing else", "a handler", "no actor", "no handler", "a tell", "a cancel"],
)
async def test_a_hello_that_says_nothing_new_is_answered_where_nothing_else_is(
    watched: Watched, records: list[Record]
) -> None:
    watched.read(*records)
    assert watched.bundles == []
    await idle()
    (said,) = watched.said()
    assert said[0] == watched.welcome and all(isinstance(record, Failure | Gone) for record in said[1:])


@pytest.mark.parametrize("what", ["for another epoch", "nonsense behind it"])
async def test_a_hello_is_answered_though_its_bundle_is_dropped(watched: Watched, what: str) -> None:
    if what == "nonsense behind it":
        watched.read(Acks([1]))
    else:
        watched.read(ask(1, Echo(1)), to_epoch=watched.node.epoch + 1)
    await idle()
    assert watched.said() == [[watched.welcome]]
    assert sum([*watched.node.metrics.refused.values(), *watched.node.metrics.dropped.values()]) == 1


async def test_a_hello_that_says_something_new_is_looked_at(watched: Watched) -> None:
    for hello, refused in ((Hello("else", 1, BLOCKING), "identity"), (Hello("raw", 2, BLOCKING), "identity")):
        watched.node.metrics.refused.clear()
        watched.read(ask(1, Echo(1)), hello=hello)
        assert watched.node.metrics.refused == {refused: 1, "stranger": 1}
    await idle()
    assert watched.said() == []
    watched.read(ask(1, Echo(1)), hello=Hello("raw", 1, BLOCKING | RESUME))
    assert watched.said() == [[watched.welcome, reply(1, Echo(1))]]


async def test_of_a_name_that_was_forgotten_a_hello_tells_again(watched: Watched) -> None:
    """There may be so many names that its own is no longer known, though its session lives."""
    watched.node._newest.clear()
    watched.read()
    assert watched.node._newest == {"raw": 1}
