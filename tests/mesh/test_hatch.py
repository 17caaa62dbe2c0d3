"""The hatch beside a door: callers that are hostile, slow, too many or gone, both ends of a connection that breaks, and
how the loop waits awake for a caller that said so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mesh import hatch, hatch_wire, processors
from mesh.actor import Actor, Call
from mesh.address import IPC_PATH_BYTES
from mesh.blocking import BlockingLink
from mesh.envelope import (
    BLOCKING,
    Ask,
    AskWithFrames,
    DiallerBundle,
    Hello,
    Reply,
    ReplyWithFrames,
    Welcome,
    decode_for_dialler,
    encode_bundle,
    with_frames,
)
from mesh.errors import DeadlineExceeded, PeerLost
from mesh.framing import Reassembly, framed
from mesh.hatch import VERSION, Hatched, hatch_of
from mesh.hatch_wire import HatchWire
from mesh.node import Node
from mesh.processors import Elsewhere
from mesh.testing import Blob, Buffer, Echo, Hang, Witness, codec, until
from mesh.transport import Frame, Limits, Sent
from mesh.zmq_transport import ZmqTransport
from mesh.zmq_wire import ZmqWire

Mesh = Any  # the fixture of conftest.py

IDENTITY = b"raw|1|1"
INTRODUCTION = framed([VERSION, IDENTITY])
LARGE = 4 * 1024 * 1024
# Only a test that fails takes so long.
NEVER = 60.0


def question(id: int, message: Any, actor: str = "witness", name: str = "raw") -> list[Frame]:
    kind, body, raw = codec.encode(message)
    ask: Ask = Ask(id, actor, kind, 60_000, body)
    if raw is not None:
        ask = AskWithFrames(id, actor, kind, 60_000, body, "", len(raw))
        with_frames(ask, raw)
    return encode_bundle(1, 0, [Hello(name, 1, BLOCKING), ask])


class RawCaller:
    """Says whatever bytes it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._reassembly = Reassembly(Limits())
        self._messages: list[list[bytes]] = []

    async def say(self, words: bytes) -> None:
        """Who is let go meanwhile hears of it."""
        self._writer.write(words)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def ask(self, id: int, message: Any, **more: Any) -> None:
        await self.say(framed(question(id, message, **more)))

    async def heard(self) -> list[bytes] | None:
        """A message; None: the connection is over."""
        async with asyncio.timeout(NEVER):
            while not self._messages:
                try:
                    piece = await self._reader.read(1 << 16)
                except ConnectionError:
                    piece = b""
                if not piece:
                    return None
                self._messages += self._reassembly.feed(piece)
        return self._messages.pop(0)

    async def bundle(self) -> DiallerBundle:
        frames = await self.heard()
        assert frames is not None
        return decode_for_dialler(frames)

    async def answer(self) -> tuple[int, list[bytes]]:
        """Its id, and the raw frames that came with it."""
        while True:
            frames = await self.heard()
            assert frames is not None
            for record in decode_for_dialler(frames).records:
                if isinstance(record, Reply | ReplyWithFrames):
                    return record.id, frames[1:]

    async def is_let_go(self) -> bool:
        while await self.heard() is not None:
            pass
        return True

    def leave(self) -> None:
        self._writer.close()


MakeCaller = Callable[..., Awaitable[RawCaller]]


@pytest.fixture
async def callers() -> AsyncIterator[MakeCaller]:
    made: list[RawCaller] = []

    async def make(node: Node, introduction: bytes = INTRODUCTION) -> RawCaller:
        caller = RawCaller(*await asyncio.open_unix_connection(hatch_of(node.endpoint)))
        made.append(caller)
        await caller.say(introduction)
        return caller

    yield make
    for caller in made:
        caller.leave()


@pytest.fixture
def links() -> Iterator[list[BlockingLink]]:
    made: list[BlockingLink] = []
    yield made
    for link in made:
        link.close()


@pytest.fixture(autouse=True)
def _processors_as_they_were() -> Iterator[None]:
    """Whoever kept a thread off a processor lets it go there again."""
    before = os.sched_getaffinity(0)
    yield
    after = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before)
    assert after == before


@pytest.fixture(autouse=True)
def _nothing_failed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A callback that raises is logged by the loop, and nowhere else."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def link_to(links: list[BlockingLink], endpoint: str, actor: str = "witness") -> BlockingLink:
    links.append(BlockingLink(endpoint, actor, codec, "stepper"))
    assert isinstance(links[-1]._wire, HatchWire)
    return links[-1]


async def in_thread(call: Any, *arguments: Any, **more: Any) -> Any:
    return await asyncio.to_thread(call, *arguments, **more)


async def far_of(mesh: Mesh, actor: Actor | None = None, **more: Any) -> Node:
    far: Node = await mesh.node("far", **more)
    await far.spawn(actor or Witness(), "witness")
    return far


def hatch_in(node: Node) -> hatch.Hatch:
    transport = node._transport
    assert isinstance(transport, Hatched) and transport._hatch is not None
    return transport._hatch


async def is_served(links: list[BlockingLink], node: Node) -> bool:
    answer: Echo = await in_thread(link_to(links, node.endpoint).ask, Echo(7), timeout=NEVER)
    return answer == Echo(7)


# Introductions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "introduction",
    [
        [b"specmesh-hatch-2", IDENTITY],
        [VERSION, b""],
        [VERSION, b"x" * 256],
        [VERSION, IDENTITY, b""],
        [VERSION],
        [],
        question(1, Echo()),
    ],
    ids=["version", "no identity", "a long identity", "three frames", "one frame", "no frame", "a bundle"],
)
async def test_a_wrong_introduction_is_refused_and_the_others_are_served(
    introduction: list[bytes], hatch_mesh: Mesh, callers: MakeCaller, links: list[BlockingLink]
) -> None:
    far = await far_of(hatch_mesh)
    caller = await callers(far, framed(introduction) + framed(question(1, Echo())))
    assert await caller.is_let_go()
    assert far.metrics.refused == {"handshake": 1}
    assert far.metrics.bundles["received"] == 0
    assert await is_served(links, far)


async def test_a_long_identity_is_taken_if_it_is_not_too_long(hatch_mesh: Mesh, callers: MakeCaller) -> None:
    far = await far_of(hatch_mesh)
    caller = await callers(far, framed([VERSION, IDENTITY.ljust(255, b"1")]))
    await caller.ask(1, Echo())
    assert (await caller.answer())[0] == 1


async def test_a_hello_that_does_not_match_the_identity_is_refused(
    hatch_mesh: Mesh, callers: MakeCaller, links: list[BlockingLink]
) -> None:
    far = await far_of(hatch_mesh)
    caller = await callers(far)
    await caller.ask(1, Echo(), name="somebody")
    await until(lambda: far.metrics.refused.get("identity") == 1)
    assert not far._accepted
    assert await is_served(links, far)


async def test_who_never_says_who_it_is_is_let_go_and_nobody_else(
    hatch_mesh: Mesh, callers: MakeCaller, links: list[BlockingLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch, "INTRODUCTION", 0.02)
    far = await far_of(hatch_mesh)
    known = await callers(far)
    await until(lambda: IDENTITY in hatch_in(far).callers)
    silent, hesitant = await callers(far, b""), await callers(far, INTRODUCTION[:-1])
    assert await silent.is_let_go() and await hesitant.is_let_go()
    assert far.metrics.refused == {"handshake": 2}
    await known.ask(1, Echo())
    assert (await known.answer())[0] == 1


async def test_too_many_are_refused_and_those_inside_are_served(
    hatch_mesh: Mesh, callers: MakeCaller, links: list[BlockingLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch, "MAX_CALLERS", 2)
    far = await far_of(hatch_mesh)
    link = link_to(links, far.endpoint)
    await in_thread(link.ask, Echo(), timeout=NEVER)
    second = await callers(far)
    await until(lambda: len(hatch_in(far)._connected) == 2)
    for refused in (1, 2, 3):
        third = await callers(far)
        assert await third.is_let_go()
        assert far.metrics.refused == {"too_many_peers": refused}
    assert await in_thread(link.ask, Echo(2), timeout=NEVER) == Echo(2)
    second.leave()
    await until(lambda: len(hatch_in(far)._connected) == 1)
    fourth = await callers(far, framed([VERSION, b"raw|1|4"]))
    await fourth.ask(1, Echo())
    assert (await fourth.answer())[0] == 1


async def test_who_connects_again_takes_its_own_place(hatch_mesh: Mesh, callers: MakeCaller) -> None:
    far = await far_of(hatch_mesh, timing=hatch_mesh.quick)
    before = await callers(far)
    await before.ask(1, Echo())
    await before.answer()
    session = far._accepted[IDENTITY].number
    after = await callers(far)
    assert await before.is_let_go()
    await after.ask(2, Echo())
    welcome, answer = (await after.bundle()).records
    assert isinstance(welcome, Welcome) and welcome.session == session
    assert isinstance(answer, Reply) and answer.id == 2
    assert far.metrics.peers_lost == 0 and list(hatch_in(far).callers) == [IDENTITY]


# Bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["instead of an introduction", "after it"])
async def test_random_bytes_do_no_harm(
    known: bool, hatch_mesh: Mesh, callers: MakeCaller, links: list[BlockingLink]
) -> None:
    far = await far_of(hatch_mesh)
    rng = random.Random(3)
    for number in range(100):
        words = bytes(rng.choices([0, 1, 2, 255], [6, 2, 1, 1], k=rng.randrange(1, 300)))
        if number % 2:
            words = framed([rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(4))])
        caller = await callers(far, framed([VERSION, b"raw|1|%d" % number]) if known else b"")
        await caller.say(words)
        caller.leave()
    await until(lambda: not hatch_in(far)._connected and sum(far.metrics.refused.values()) >= 50)
    assert set(far.metrics.refused) <= {"handshake", "malformed"} and not hatch_in(far).callers
    assert await is_served(links, far)


@pytest.mark.parametrize("known", [False, True], ids=["a stranger", "a known caller"])
async def test_a_giant_that_is_announced_is_refused_at_once(
    known: bool, hatch_mesh: Mesh, callers: MakeCaller, links: list[BlockingLink]
) -> None:
    far = await far_of(hatch_mesh)
    for words in (struct.pack("<HHI", 1, 0, 2**32 - 1), struct.pack("<HH", 65535, 0)):
        caller = await callers(far, INTRODUCTION if known else b"")
        await caller.say(words)
        assert await caller.is_let_go()
    assert far.metrics.refused == {"malformed": 2}
    assert await is_served(links, far)


async def test_half_a_message_keeps_nobody_waiting(
    hatch_mesh: Mesh, callers: MakeCaller, links: list[BlockingLink]
) -> None:
    far = await far_of(hatch_mesh)
    caller = await callers(far)
    words = framed(question(1, Echo(5)))
    await caller.say(words[:-1])
    await until(lambda: IDENTITY in hatch_in(far).callers and hatch_in(far).callers[IDENTITY]._reassembly._held)
    assert await is_served(links, far)
    await caller.say(words[-1:])
    assert (await caller.answer())[0] == 1


async def test_what_is_no_bundle_is_counted_and_the_next_is_served(hatch_mesh: Mesh, callers: MakeCaller) -> None:
    far = await far_of(hatch_mesh)
    caller = await callers(far)
    # All in one piece, too.
    await caller.say(framed([b"no bundle"]) + framed([]) + framed(question(1, Echo())))
    assert (await caller.answer())[0] == 1
    assert far.metrics.refused == {"malformed": 2}


async def test_a_message_that_cannot_be_taken_costs_that_message_alone(
    hatch_mesh: Mesh, callers: MakeCaller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    far = await far_of(hatch_mesh)
    caller = await callers(far)
    received = Node.received

    def stumble(node: Node, identity: bytes, frames: list[bytes]) -> None:
        if frames == [b"stone"]:
            raise ZeroDivisionError
        received(node, identity, frames)

    monkeypatch.setattr(Node, "received", stumble)
    await caller.say(framed([b"stone"]))
    await caller.ask(1, Echo())
    assert (await caller.answer())[0] == 1
    assert far.metrics.refused == {"internal": 1}
    assert "could not be taken" in caplog.text
    caplog.clear()


# Loss and room ----------------------------------------------------------------------------------------------


async def test_a_caller_that_leaves_is_noticed(hatch_mesh: Mesh, callers: MakeCaller) -> None:
    witness = Witness()
    far = await far_of(hatch_mesh, witness, timing=hatch_mesh.quick)
    caller = await callers(far)
    await caller.ask(1, Hang())
    await asyncio.wait_for(witness.until("started", 1), NEVER)
    assert far._transport.reply(IDENTITY, encode_bundle(far.epoch, 1, [])) is Sent.SENT
    caller.leave()
    await asyncio.wait_for(witness.until("cancelled", 1), NEVER)
    await until(lambda: not far._accepted)
    assert far._transport.reply(IDENTITY, [b""]) is Sent.GONE
    assert not hatch_in(far)._connected


class LosesItsCaller(Actor):
    """It is gone before its answer leaves."""

    answers: ClassVar = {Echo: "echo"}

    def __init__(self, caller: socket.socket) -> None:
        self.caller = caller
        self.done = 0

    def echo(self, message: Echo, call: Call) -> Echo:
        self.caller.close()
        call.afterwards = self.count
        return message

    def count(self) -> None:
        assert hatch_in(self.node).callers == {}
        self.done += 1


async def test_what_is_put_off_is_done_once_though_the_caller_is_gone(
    hatch_mesh: Mesh, links: list[BlockingLink]
) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        actor = LosesItsCaller(caller)
        far = await far_of(hatch_mesh, actor)
        caller.connect(str(hatch_of(far.endpoint)))
        caller.sendall(INTRODUCTION + framed(question(1, Echo())))
        await until(lambda: actor.done)
    await until(lambda: not hatch_in(far)._connected)
    assert actor.done == 1 and far._accepted[IDENTITY].gone_since is not None
    assert far.metrics.handler_errors == 0 and far.metrics.received_kinds["echo"][0] == 1
    await far.spawn(Witness(), "other")
    assert await in_thread(link_to(links, far.endpoint, "other").ask, Echo(7), timeout=NEVER) == Echo(7)


async def test_answers_larger_than_the_socket_arrive_whole_when_there_is_room(
    hatch_mesh: Mesh, callers: MakeCaller
) -> None:
    """The rest of the first waits in the hatch, the second in the node, which is told when it may go."""
    far = await far_of(hatch_mesh)
    caller = await callers(far)
    blobs = {id: random.Random(id).randbytes(LARGE) for id in (1, 2)}
    for id, data in blobs.items():
        await caller.ask(id, Blob("t", Buffer(data)))
    await until(lambda: hatch_in(far).callers[IDENTITY]._full)
    assert len(far._accepted[IDENTITY].outbox) > 0
    while blobs:
        id, raw = await caller.answer()
        assert raw == [blobs.pop(id)]
    await until(lambda: len(far._accepted[IDENTITY].outbox) == 0)


async def test_large_questions_and_answers_pass_through_a_link(hatch_mesh: Mesh, links: list[BlockingLink]) -> None:
    far = await far_of(hatch_mesh)
    link = link_to(links, far.endpoint)
    wire = link._wire
    assert isinstance(wire, HatchWire)
    blob = Blob("t", Buffer(random.Random(4).randbytes(LARGE)))
    await in_thread(link.ask, Echo(), timeout=NEVER)
    ticket = link.send(blob, timeout=NEVER)
    assert wire._unsent, "the socket takes it in parts"
    with pytest.raises(PeerLost):
        link.send(Echo())
    assert await in_thread(link.receive, ticket, timeout=NEVER) == blob
    assert await in_thread(link.ask, Echo(5), timeout=NEVER) == Echo(5)


async def test_what_was_said_last_gets_the_time_to_leave(hatch_mesh: Mesh, callers: MakeCaller) -> None:
    """As over the door: a node that stops doesn't cut an answer it has given."""
    far = await far_of(hatch_mesh)
    caller = await callers(far)
    data = random.Random(5).randbytes(LARGE)
    await caller.ask(1, Blob("t", Buffer(data)))
    await until(lambda: IDENTITY in hatch_in(far).callers and hatch_in(far).callers[IDENTITY]._unsent)
    stopping = asyncio.create_task(far.stop(timeout=NEVER))
    assert await caller.answer() == (1, [data])
    assert await caller.is_let_go()
    await asyncio.wait_for(stopping, NEVER)


async def test_who_does_not_read_does_not_keep_a_node_from_stopping(hatch_mesh: Mesh, callers: MakeCaller) -> None:
    far = await far_of(hatch_mesh)
    caller = await callers(far)
    await caller.ask(1, Blob("t", Buffer(bytes(LARGE))))
    await until(lambda: IDENTITY in hatch_in(far).callers and hatch_in(far).callers[IDENTITY]._unsent)
    await asyncio.wait_for(far.stop(), NEVER)


# The calling side, against a far side made by hand -------------------------------------------------------------


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "far.hatch"))
        made.listen()
        made.settimeout(NEVER)
        yield made


@pytest.fixture
def wire(listener: socket.socket) -> Iterator[HatchWire]:
    made = HatchWire(listener.getsockname(), IDENTITY, Limits())
    yield made
    made.close()


def accepted(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.settimeout(NEVER)
    return connection


def read_messages(connection: socket.socket, count: int) -> list[list[bytes]]:
    reassembly, messages = Reassembly(Limits()), []
    while len(messages) < count:
        piece = connection.recv(1 << 16)
        assert piece
        messages += reassembly.feed(piece)
    return messages


def test_nothing_of_an_unsent_rest_goes_to_a_successor(listener: socket.socket, wire: HatchWire) -> None:
    first = accepted(listener)
    assert wire.send([bytes(LARGE)])
    assert wire._unsent
    first.close()
    with pytest.raises(PeerLost):
        wire.receive(NEVER)
    assert wire.wait_until_open(NEVER) and wire.send([b"new"])
    with accepted(listener) as second:
        assert read_messages(second, 2) == [[VERSION, IDENTITY], [b"new"]]


def test_a_message_of_which_nothing_left_was_not_sent(listener: socket.socket, wire: HatchWire) -> None:
    with accepted(listener) as far:
        sent = 0
        while wire.send([b"%d" % sent]):
            sent += 1
        rest = 1 if wire._unsent else 0
        messages = read_messages(far, 1 + sent - rest)
        assert messages[1:] == [[b"%d" % number] for number in range(sent - rest)]
        assert wire.send([b"last"])
        assert read_messages(far, 1)[-1] == ([b"last"] if not rest else [b"%d" % (sent - 1)])


def test_who_awaits_an_answer_learns_at_once_that_the_far_side_died(listener: socket.socket, wire: HatchWire) -> None:
    far = accepted(listener)
    assert wire.send([b"?"])
    began = time.monotonic()
    threading.Thread(target=lambda: (read_messages(far, 2), far.close())).start()
    with pytest.raises(PeerLost):
        wire.receive(NEVER)
    assert time.monotonic() - began < NEVER / 2


@pytest.mark.parametrize("says_more", [False, True], ids=["reads on", "says something first"])
def test_what_had_arrived_is_read_though_the_far_side_is_gone(
    says_more: bool, listener: socket.socket, wire: HatchWire
) -> None:
    with accepted(listener) as far:
        assert wire.send([b"?"])
        far.sendall(framed([b"first"]) + framed([bytes(100_000)]) + framed([b"half"])[:-1])
    if says_more:
        assert not wire.send([b"??"])
    assert wire.receive(NEVER) == [b"first"]
    assert wire.receive(NEVER) == [bytes(100_000)]
    with pytest.raises(PeerLost):
        wire.receive(NEVER)


@pytest.mark.parametrize("descriptors", [hatch_wire.FD_SETSIZE, 0], ids=["select", "too many for select"])
def test_who_sleeps_is_woken_by_room_for_the_rest_too(
    descriptors: int, listener: socket.socket, wire: HatchWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch_wire, "FD_SETSIZE", descriptors)
    monkeypatch.setattr(hatch_wire, "LOOKS", 0.0)
    far = accepted(listener)
    assert wire.send([bytes(LARGE)]) and wire._unsent
    assert wire.receive(0.01) is None and wire._unsent

    def read_and_answer() -> None:
        assert read_messages(far, 2)[1] == [bytes(LARGE)]
        far.sendall(framed([b"answer"]))

    reading = threading.Thread(target=read_and_answer)
    reading.start()
    try:
        assert wire.receive(NEVER) == [b"answer"]
    finally:
        wire.close()
        reading.join()
        far.close()


def test_a_far_side_that_talks_nonsense_is_left_and_met_again(listener: socket.socket, wire: HatchWire) -> None:
    with accepted(listener) as far:
        assert wire.send([b"?"])
        far.sendall(b"\xff" * 100)
        with pytest.raises(PeerLost):
            wire.receive(NEVER)
        assert read_messages(far, 2)[1] == [b"?"]
        assert far.recv(1) == b""
    assert wire.wait_until_open(NEVER)
    with accepted(listener) as far:
        far.sendall(framed([b"sense"]))
        assert wire.receive(NEVER) == [b"sense"]


def test_where_nobody_listens_nothing_is_sent_and_the_wait_ends(tmp_path: Path) -> None:
    wire = HatchWire(str(tmp_path / "nobody"), IDENTITY, Limits())
    assert not wire.send([b"?"]) and not wire.wait_until_open(0.03)
    with pytest.raises(PeerLost):
        wire.receive(NEVER)
    wire.close()
    wire.close()
    assert not wire.wait_until_open(0.0)


def test_a_wait_without_mail_ends_in_time(listener: socket.socket, wire: HatchWire) -> None:
    with accepted(listener):
        assert wire.receive(0.0) is None and wire.receive(0.01) is None


FAR = """
import asyncio, sys
from mesh.hatch import Hatched
from mesh.node import Node
from mesh.testing import Witness, codec
from mesh.zmq_transport import ZmqTransport

async def main():
    node = Node(Hatched(ZmqTransport()), codec, name="far")
    await node.start(sys.argv[1])
    await node.spawn(Witness(), "witness")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_far_process_that_stands_still_or_dies_keeps_nobody_waiting(
    tmp_path: Path, links: list[BlockingLink]
) -> None:
    endpoint = f"ipc://{tmp_path / 'far'}"
    far = subprocess.Popen([sys.executable, "-c", FAR, endpoint], stdout=subprocess.PIPE, cwd=os.getcwd())
    try:
        assert far.stdout is not None and far.stdout.readline() == b"ready\n"
        link = link_to(links, endpoint)
        assert link.ask(Echo(1), timeout=NEVER) == Echo(1)
        os.kill(far.pid, signal.SIGSTOP)
        os.waitpid(far.pid, os.WUNTRACED)
        ticket = link.send(Echo(2))
        with pytest.raises(DeadlineExceeded):
            link.receive(ticket, timeout=0.02)
        os.kill(far.pid, signal.SIGCONT)
        assert link.ask(Echo(3), timeout=NEVER) == Echo(3)
        ticket = link.send(Hang(), timeout=NEVER)
        began = time.monotonic()
        far.kill()
        with pytest.raises(PeerLost):
            link.receive(ticket, timeout=NEVER)
        assert time.monotonic() - began < NEVER / 2
    finally:
        far.kill()
        far.communicate()


# The file ---------------------------------------------------------------------------------------------------


async def test_only_its_owner_may_come_in_and_the_file_goes_with_the_node(hatch_mesh: Mesh, tmp_path: Path) -> None:
    far = await far_of(hatch_mesh)
    path = tmp_path / "far.hatch"
    assert path.stat().st_mode & 0o777 == 0o600
    await far.stop()
    assert not path.exists()


async def test_a_file_left_by_the_dead_is_replaced(
    hatch_mesh: Mesh, tmp_path: Path, links: list[BlockingLink]
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "far.hatch"))
    link = link_to(links, hatch_mesh.endpoint("far"))
    with pytest.raises(PeerLost):
        link.send(Echo())
    await far_of(hatch_mesh)
    assert await in_thread(link.ask, Echo(3), timeout=NEVER) == Echo(3)


async def test_the_hatch_of_a_successor_is_left_alone(
    hatch_mesh: Mesh, tmp_path: Path, links: list[BlockingLink]
) -> None:
    before = await hatch_mesh.node("far")
    after = await far_of(hatch_mesh)
    await before.stop()
    assert (tmp_path / "far.hatch").exists()
    assert await is_served(links, after)


def test_only_a_path_with_room_for_it_has_a_hatch() -> None:
    longest = "/" + "x" * (IPC_PATH_BYTES - len(hatch.SUFFIX) - 1)
    assert hatch_of(f"ipc://{longest}") == longest + ".hatch"
    for endpoint in (f"ipc://{longest}x", "ipc://@abstract", "ipc://*", "tcp://127.0.0.1:80", "mem://far", "inproc://x"):
        assert hatch_of(endpoint) is None


async def test_where_no_hatch_can_be_the_door_is_taken(
    hatch_mesh: Mesh, tmp_path: Path, links: list[BlockingLink]
) -> None:
    longest = "x" * (IPC_PATH_BYTES - len(str(tmp_path).encode()) - 1)
    for endpoint in (f"ipc://{tmp_path}/{longest}", f"ipc://@{os.getpid()}-specmesh-test"):
        node = Node(Hatched(ZmqTransport()), codec, name="far", timing=hatch_mesh.timing)
        await node.start(endpoint)
        try:
            await node.spawn(Witness(), "witness")
            links.append(BlockingLink(node.endpoint, "witness", codec, "stepper"))
            assert isinstance(links[-1]._wire, ZmqWire)
            assert await in_thread(links[-1].ask, Echo(3), timeout=NEVER) == Echo(3)
        finally:
            await node.stop()


@pytest.mark.parametrize("step", ["bind", "chmod", "stat"])
async def test_a_hatch_that_fails_leaves_no_file_that_would_be_knocked_at(
    step: str, hatch_mesh: Mesh, tmp_path: Path, links: list[BlockingLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **more: Any) -> Any:
        raise PermissionError("not here")

    class Unbound(socket.socket):
        bind = refuse

    class Refusing:
        """The door has its own `os`."""

        def __init__(self, step: str) -> None:
            self._step = step

        def __getattr__(self, name: str) -> Any:
            return refuse if name == self._step else getattr(os, name)

    with monkeypatch.context() as patch:
        if step == "bind":
            patch.setattr(hatch.socket, "socket", Unbound)
        else:
            patch.setattr(hatch, "os", Refusing(step))
        far = await hatch_mesh.node("far")
    await far.spawn(Witness(), "witness")
    assert not (tmp_path / "far.hatch").exists()
    links.append(BlockingLink(far.endpoint, "witness", codec, "stepper"))
    assert isinstance(links[-1]._wire, ZmqWire)
    assert await in_thread(links[-1].ask, Echo(3), timeout=NEVER) == Echo(3)


async def test_without_a_descriptor_left_it_listens_again_later(
    hatch_mesh: Mesh, links: list[BlockingLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch, "INTRODUCTION", 0.02)
    far = await far_of(hatch_mesh)
    inner, refused = hatch_in(far)._socket, 0

    class Exhausted:
        fileno = staticmethod(inner.fileno)
        close = staticmethod(inner.close)

        def accept(self) -> Any:
            nonlocal refused
            if refused < 2:
                refused += 1
                raise OSError(24, "too many open files")
            return inner.accept()

    monkeypatch.setattr(hatch_in(far), "_socket", Exhausted())
    monkeypatch.setattr(hatch, "INTRODUCTION", 0.02)
    link = link_to(links, far.endpoint)
    ticket = link.send(Echo(3), timeout=NEVER)
    await until(lambda: refused == 2)
    monkeypatch.setattr(hatch, "INTRODUCTION", NEVER)
    assert await in_thread(link.receive, ticket, timeout=NEVER) == Echo(3)


# Awake ------------------------------------------------------------------------------------------------------


class Awaiting(Actor):
    """Says of the callers that want it that they ask again at once, and writes down what happens in which order.

    "-": everybody else had a turn; otherwise the number of a question, negative where the loop was awake for it.
    """

    answers: ClassVar = {Echo: "echo"}

    def __init__(self) -> None:
        self.order: list[int | str] = []
        self.affinities: list[set[int]] = []

    def echo(self, message: Echo, call: Call) -> Echo:
        self.order.append(-message.number if hatch_in(self.node)._watches else message.number)
        self.affinities.append(os.sched_getaffinity(0))
        asyncio.get_running_loop().call_soon(self.order.append, "-")
        if message.text == "again":
            call.awaited = NEVER
        return message


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is awaited comes before the watch is over, however busy the machine is."""
    monkeypatch.setattr(hatch, "LONGEST_WATCH", NEVER)
    # Nor does it go to sleep for those that share its processor.
    monkeypatch.setattr(processors, "TAKEN", NEVER)


@pytest.mark.usefixtures("patient")
async def test_who_said_that_it_asks_again_is_answered_before_anybody_else_has_a_turn(
    hatch_mesh: Mesh, links: list[BlockingLink]
) -> None:
    actor = Awaiting()
    link = link_to(links, (await far_of(hatch_mesh, actor)).endpoint)

    def ask() -> None:
        for number, text in ((1, ""), (2, "again"), (3, "again"), (4, ""), (5, "")):
            assert link.ask(Echo(number, text), timeout=NEVER) == Echo(number, text)

    await in_thread(ask)
    await until(lambda: actor.order.count("-") == 5)
    assert actor.order == [1, "-", 2, -3, -4, "-", "-", "-", 5, "-"]


@pytest.mark.usefixtures("patient")
async def test_others_are_answered_meanwhile(hatch_mesh: Mesh, links: list[BlockingLink]) -> None:
    actor = Awaiting()
    endpoint = (await far_of(hatch_mesh, actor)).endpoint
    awaited, other = link_to(links, endpoint), link_to(links, endpoint)

    def ask() -> None:
        other.ask(Echo(1), timeout=NEVER)
        awaited.ask(Echo(2, "again"), timeout=NEVER)
        other.ask(Echo(3), timeout=NEVER)
        other.ask(Echo(4), timeout=NEVER)
        awaited.ask(Echo(5), timeout=NEVER)

    await in_thread(ask)
    await until(lambda: actor.order.count("-") == 5)
    assert actor.order == [1, "-", 2, -3, -4, -5, "-", "-", "-", "-"]


async def test_a_watch_ends_however_often_it_is_promised_again(
    hatch_mesh: Mesh, links: list[BlockingLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch, "LONGEST_WATCH", 0.02)
    actor = Awaiting()
    link = link_to(links, (await far_of(hatch_mesh, actor)).endpoint)
    enough, asked = threading.Event(), 0

    def ask() -> bool:
        nonlocal asked
        until = time.monotonic() + 10.0
        while not enough.is_set() and time.monotonic() < until:
            asked += 1
            link.ask(Echo(asked, "again"), timeout=NEVER)
        return enough.is_set()

    asking = asyncio.create_task(in_thread(ask))
    # It needs the loop for this; and it was awake in between.
    await until(lambda: any(isinstance(what, int) and what < 0 for what in actor.order))
    for _ in range(5):
        before = asked
        await until(lambda before=before: asked > before)
    enough.set()
    assert await asking, "nobody else had a turn"


async def test_a_promise_that_is_not_kept_costs_a_moment(hatch_mesh: Mesh, links: list[BlockingLink]) -> None:
    actor = Awaiting()
    link = link_to(links, (await far_of(hatch_mesh, actor)).endpoint)
    began = time.monotonic()
    await in_thread(link.ask, Echo(1, "again"), timeout=NEVER)
    await until(lambda: actor.order == [1, "-"])
    assert time.monotonic() - began < NEVER / 2
    assert not hatch_in(actor.node).awaited


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", ["leaves", "says farewell", "talks nonsense"])
async def test_an_awaited_caller_that_disconnects_does_no_harm(
    how: str, hatch_mesh: Mesh, links: list[BlockingLink]
) -> None:
    actor = Awaiting()
    far = await far_of(hatch_mesh, actor)
    link = link_to(links, far.endpoint)
    wire = link._wire
    assert isinstance(wire, HatchWire)

    def ask_and_leave() -> None:
        link.ask(Echo(1, "again"), timeout=NEVER)
        assert wire._socket is not None
        if how == "leaves":
            wire.close()
        elif how == "says farewell":
            link.close()
        else:
            wire._socket.sendall(b"\xff" * 100)

    began = time.monotonic()
    await in_thread(ask_and_leave)
    await until(lambda: not hatch_in(far)._connected and actor.order[-1] == "-")
    assert time.monotonic() - began < NEVER / 2, "it was awaited for nothing"
    assert not hatch_in(far)._watches and not hatch_in(far).awaited
    assert await is_served(links, far)


@pytest.mark.usefixtures("patient")
async def test_a_watch_that_fails_is_not_the_last(
    hatch_mesh: Mesh, links: list[BlockingLink], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    actor = Awaiting()
    link = link_to(links, (await far_of(hatch_mesh, actor)).endpoint)

    def stumble(elsewhere: Elsewhere, processors: set[int]) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Elsewhere, "avoid", stumble)
        await in_thread(link.ask, Echo(1, "again"), timeout=NEVER)
        await until(lambda: "ZeroDivisionError" in caplog.text)
    caplog.clear()

    def ask() -> None:
        link.ask(Echo(2, "again"), timeout=NEVER)
        link.ask(Echo(3), timeout=NEVER)

    await in_thread(ask)
    assert [what for what in actor.order if what != "-"] == [1, 2, -3]


several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is nowhere else to go")


def asks_from(path: str, processor: int, then: Callable[[float], object] = bool) -> None:
    """Two questions of a caller that says it is on this processor, the first of which has it awaited."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(NEVER)
        caller.connect(path)
        caller.sendall(INTRODUCTION)
        for number, text in ((1, "again"), (2, "")):
            caller.sendall(framed(question(number, Echo(number, text)), processor))
            read_messages(caller, 1)
        then(NEVER)


@several
@pytest.mark.usefixtures("patient")
async def test_the_loop_keeps_off_the_processor_of_whom_it_awaits_until_that_one_leaves(
    hatch_mesh: Mesh,
) -> None:
    actor = Awaiting()
    far = await far_of(hatch_mesh, actor)
    allowed = os.sched_getaffinity(0)
    there = min(allowed)
    path = hatch_of(far.endpoint)
    assert path is not None

    await in_thread(asks_from, path, there)
    await until(lambda: not hatch_in(far)._connected)
    assert actor.affinities == [allowed, allowed - {there}]
    assert os.sched_getaffinity(0) == allowed


@several
@pytest.mark.usefixtures("patient")
async def test_it_keeps_off_for_a_while_after_a_watch_and_not_for_ever(hatch_mesh: Mesh) -> None:
    """Who sleeps beside somebody who is at work would be woken there, and wait."""
    far = await far_of(hatch_mesh, Awaiting())
    allowed = os.sched_getaffinity(0)
    there = min(allowed)
    path = hatch_of(far.endpoint)
    assert path is not None
    left = threading.Event()

    calling = asyncio.create_task(in_thread(asks_from, path, there, left.wait))
    own = hatch_in(far)
    try:
        await until(lambda: bool(own._apart) and not own._watches)
        assert os.sched_getaffinity(0) == allowed - {there} and own._lifts is not None
        # Somebody was awaited just now: not yet.
        own._lift()
        assert os.sched_getaffinity(0) == allowed - {there} and own._lifts is not None
        own._apart_until = 0.0
        own._lift()
        assert os.sched_getaffinity(0) == allowed and own._lifts is None
    finally:
        left.set()
        await calling


@pytest.mark.usefixtures("patient")
async def test_a_watch_goes_on_when_everybody_else_had_a_turn(
    hatch_mesh: Mesh, links: list[BlockingLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Awaiting()
    link = link_to(links, (await far_of(hatch_mesh, actor)).endpoint)
    begins, stay_apart = 0, hatch.Hatch._stay_apart

    def begin(self: hatch.Hatch) -> None:
        nonlocal begins
        begins += 1
        # The first one is as long as one may be at once, as soon as it has begun.
        monkeypatch.setattr(hatch, "LONGEST_WATCH", 0.0 if begins == 1 else NEVER)
        stay_apart(self)

    monkeypatch.setattr(hatch.Hatch, "_stay_apart", begin)

    def ask() -> None:
        link.ask(Echo(1, "again"), timeout=NEVER)
        link.ask(Echo(2), timeout=NEVER)

    await in_thread(ask)
    await until(lambda: actor.order.count("-") == 2)
    assert begins == 2 and actor.order == [1, "-", -2, "-"]


# Processors -------------------------------------------------------------------------------------------------


def in_its_own_thread(call: Callable[[], None]) -> None:
    """What it does to its thread ends with it."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_a_thread_knows_its_processor() -> None:
    assert processors.current() in os.sched_getaffinity(0)

    def on_one(processor: int) -> None:
        os.sched_setaffinity(0, {processor})
        assert processors.current() == processor

    for processor in os.sched_getaffinity(0):
        in_its_own_thread(lambda processor=processor: on_one(processor))


def test_elsewhere_leaves_a_processor_and_undoes_itself() -> None:
    def avoid() -> None:
        allowed = os.sched_getaffinity(0)
        elsewhere = Elsewhere()
        rng = random.Random(6)
        for _ in range(200):
            avoided = {rng.choice([*allowed, -1, 5000, 70000]) for _ in range(rng.randrange(len(allowed) + 2))}
            elsewhere.avoid(avoided)
            now = os.sched_getaffinity(0)
            assert now and now <= allowed
            assert now == allowed - avoided or allowed <= avoided
            if rng.random() < 0.3:
                elsewhere.avoid(set())
                assert os.sched_getaffinity(0) == allowed
        for processor in allowed:
            elsewhere.avoid({processor})
        elsewhere.avoid(allowed)
        assert os.sched_getaffinity(0)
        elsewhere.avoid({-1})
        assert os.sched_getaffinity(0) == allowed

    in_its_own_thread(avoid)


@several
def test_a_thread_that_one_who_keeps_off_has_started_may_run_anywhere() -> None:
    seen: list[set[int]] = []

    def start() -> None:
        allowed = os.sched_getaffinity(0)
        Elsewhere().avoid({min(allowed)})
        in_its_own_thread(lambda: seen.append(os.sched_getaffinity(0)))
        in_its_own_thread(lambda: (processors.anywhere(), seen.append(os.sched_getaffinity(0))))  # type: ignore[func-returns-value]
        assert seen == [allowed - {min(allowed)}, allowed]

    in_its_own_thread(start)


def test_elsewhere_on_one_processor_stays_there() -> None:
    def avoid() -> None:
        here = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(0, here)
        elsewhere = Elsewhere()
        elsewhere.avoid(here)
        assert os.sched_getaffinity(0) == here

    in_its_own_thread(avoid)


@several
def test_where_processors_are_not_ours_to_choose_elsewhere_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sandbox, or when they were taken away meanwhile."""
    allowed = os.sched_getaffinity(0)

    def refuse(thread: int, wanted: set[int]) -> None:
        raise PermissionError

    elsewhere = Elsewhere()
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", refuse)
        elsewhere.avoid({min(allowed)})
        elsewhere.avoid(set())
    assert os.sched_getaffinity(0) == allowed
