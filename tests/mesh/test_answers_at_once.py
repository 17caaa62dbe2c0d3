"""Messages that an actor answers as they are read: answers and errors are a handler's, and nothing is before them."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from mesh.actor import Actor, Call
from mesh.blocking import BlockingLink
from mesh.errors import Draining, NotRunning, Refuse, RemoteError, UnknownKind
from mesh.hatch_wire import HatchWire
from mesh.testing import Blob, Buffer, Count, Echo, Fail, Hang, Note, codec, until
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
