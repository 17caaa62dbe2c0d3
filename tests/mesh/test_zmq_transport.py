"""ZeroMQ itself: what may be bound, who gets through, hostile frames, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from mesh_doubles.messages import Count, Echo, Hang, Witness, codec, mutate, until

from mesh.accepted import MAX_WINDOW, PEER_WINDOWS
from mesh.address import routing_id
from mesh.envelope import (
    VERSION,
    AskRecord,
    Cancel,
    Credit,
    Farewell,
    Hello,
    Item,
    Open,
    decode_for_dialler,
    encode_bundle,
)
from mesh.errors import DeadlineExceeded, Insecure, NotReached, PeerLost
from mesh.node import Node
from mesh.security import CurveClient, CurveServer
from mesh.timing import Timing
from mesh.transport import MessageLimits
from mesh.transport.zmq import ZmqTransport

Mesh = Any  # the fixture of conftest.py


IPV6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="the system has no IPv6")


class Keys:
    """A pair of keys with an allow-list, as mesh/security.py would read them from a folder."""

    def __init__(self, allowed: list[Keys] | None = None) -> None:
        self.public, self.secret = zmq.curve_keypair()
        self.allowed = allowed or []
        self.server_key = self.public

    def server(self) -> CurveServer:
        return CurveServer(self.public, self.secret, frozenset(keys.public for keys in self.allowed))

    def client(self) -> CurveClient:
        return CurveClient(self.public, self.secret, self.server_key)


@pytest.mark.parametrize("endpoint", ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://127.0.0.1:0", "tcp://[::1]:0"])
async def test_an_address_beyond_the_host_is_not_bound_without_keys(endpoint: str) -> None:
    node = Node(ZmqTransport(), codec, name="open")
    with pytest.raises(Insecure, match="specmesh keys"):
        await node.start(endpoint)
    await node.stop()


async def test_an_address_beyond_the_host_is_not_dialled_without_keys() -> None:
    node = Node(ZmqTransport(), codec, name="open")
    await node.start()
    with pytest.raises(Insecure, match="specmesh keys"):
        await node.ref("tcp://127.0.0.1:9", "witness").ask(Echo(), timeout=1.0)
    await node.stop()


@pytest.mark.parametrize(
    "endpoint", ["", "nonsense", "ipc://", "tcp://host", "tcp://:9", "udp://h:1", "ipc:///" + "x" * 120]
)
async def test_what_is_no_endpoint_is_named(endpoint: str) -> None:
    node = Node(ZmqTransport(), codec, name="open")
    with pytest.raises(ValueError):
        await node.start(endpoint)
    await node.stop()


@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("[::1]", marks=IPV6)])
async def test_over_tcp_the_keys_on_the_list_get_in_and_others_do_not(address: str) -> None:
    friend, foe = Keys(), Keys()
    door = Keys(allowed=[friend])
    friend.server_key = foe.server_key = door.public
    far = Node(ZmqTransport(security=door), codec, name="far")
    await far.start(f"tcp://{address}:0")
    assert far.endpoint.startswith(f"tcp://{address}:") and not far.endpoint.endswith(":0")
    await far.spawn(Witness(), "witness")
    near = Node(ZmqTransport(security=friend), codec, name="friend")
    await near.start()
    assert await near.ref(far.endpoint, "witness").ask(Echo(4), timeout=10.0) == Echo(4)
    stranger = Node(ZmqTransport(security=foe), codec, name="foe", timing=Timing(connect=0.5))
    await stranger.start()
    with pytest.raises(PeerLost):
        await stranger.ref(far.endpoint, "witness").ask(Echo(), timeout=10.0)
    assert far.metrics.refused["key"] >= 1
    plain = zmq.Context()
    naked = plain.socket(zmq.DEALER)
    naked.setsockopt(zmq.IPV6, 1)
    naked.connect(far.endpoint)
    naked.send(encode_bundle(1, 0, [Hello("naked", 1)])[0])
    assert await asyncio.to_thread(naked.poll, 300) == 0
    naked.close(0)
    plain.term()
    for node in (near, stranger, far):
        await node.stop()


async def test_where_the_system_has_no_socket_left_an_ask_does_not_reach_its_peer(
    zmq_mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(context: Any, kind: int) -> Any:
        raise zmq.ZMQError(errno.EMFILE)

    near = await zmq_mesh.node("near")
    with monkeypatch.context() as patched:
        patched.setattr(zmq.Context, "socket", none_left)
        with pytest.raises(NotReached, match="no socket"):
            await near.ref(zmq_mesh.endpoint("far"), "witness").ask(Echo(), timeout=5.0)


async def test_a_socket_file_is_its_owners_alone(zmq_mesh: Mesh) -> None:
    node = await zmq_mesh.node("far")
    mode = os.stat(node.endpoint.removeprefix("ipc://")).st_mode
    assert stat.S_IMODE(mode) == 0o600


# Hostile bytes --------------------------------------------------------------------------------------------


class Attacker:
    """A plain DEALER that sends whatever it likes."""

    def __init__(self, endpoint: str, identity: bytes | None = None) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, 2000)
        if identity is not None:
            self.socket.setsockopt(zmq.ROUTING_ID, identity)
        self.socket.connect(endpoint)

    def send(self, frames: list[bytes]) -> None:
        self.socket.send_multipart(frames)

    async def send_when_it_fits(self, frames: list[bytes]) -> None:
        """The reader may live on this very loop: it gets its turn while we wait."""
        await until(lambda: self.socket.poll(0, zmq.POLLOUT), timeout=30.0)
        self.send(frames)

    def heard(self, milliseconds: int = 100) -> bool:
        return bool(self.socket.poll(milliseconds))

    def close(self) -> None:
        self.socket.close()
        self._context.term()


async def until_refused(node: Node, reason: str, count: int = 1) -> None:
    await until(lambda: node.metrics.refused.get(reason, 0) >= count)


async def test_strangers_get_no_answer(zmq_mesh: Mesh) -> None:
    far = await zmq_mesh.node("far")
    await far.spawn(Witness(), "witness")
    body = codec.encode(Echo(1))[1]
    attacker = Attacker(far.endpoint, b"stranger|1|1")
    attacker.send([bytes(x) for x in encode_bundle(1, 0, [AskRecord(1, "witness", "echo", 1000, body)])])
    asked = AskRecord(1, "witness", "echo", 1000, body)
    attacker.send([bytes(x) for x in encode_bundle(1, 0, [Hello("another", 1), asked])])
    attacker.send([b"\xc1 not msgpack"])
    attacker.send([b""])
    await until_refused(far, "stranger")
    await until_refused(far, "identity")
    await until_refused(far, "malformed", 2)
    assert not await asyncio.to_thread(attacker.heard)
    attacker.close()


async def test_unknown_versions_ext_types_and_depth_are_refused(zmq_mesh: Mesh) -> None:
    far = await zmq_mesh.node("far")
    attacker = Attacker(far.endpoint, b"odd|1|1")
    pack = msgspec.msgpack.encode
    odd = [
        pack([99, 1, 0, []]),
        pack([VERSION, 1, 0, [[99, 1]]]),
        pack([VERSION, 1, 0, [[1, msgspec.msgpack.Ext(5, b"x"), 1]]]),
        b"\x91" * 100_000,
        pack([VERSION, 1, 0, [[6, [1] * 5]] * 5000]),
        b"\x94\x02\x01\x00\xdd\xff\xff\xff\xff",
        pack([VERSION, 2**63, 0, []])[:-1],
    ]
    for frame in odd:
        attacker.send([frame])
    await until_refused(far, "malformed", len(odd))
    assert not await asyncio.to_thread(attacker.heard)
    attacker.close()


async def test_too_many_and_too_large_frames_are_refused(zmq_mesh: Mesh, tmp_path: Path) -> None:
    far = Node(ZmqTransport(limits=MessageLimits(frame_bytes=10_000, frames=4)), codec, name="far")
    await far.start(f"ipc://{tmp_path}/small.sock")
    attacker = Attacker(far.endpoint, b"big|1|1")
    attacker.send([b"x"] * 50)
    await until_refused(far, "too_many_frames")
    attacker.send([b"x" * 20_000])
    near = await zmq_mesh.node("near")
    await far.spawn(Witness(), "witness")
    assert await near.ref(far.endpoint, "witness").ask(Echo(1), timeout=5.0) == Echo(1)
    assert far.metrics.bundles["received"] <= 5, "the large frame never came up"
    attacker.close()
    await far.stop()


async def test_raw_frames_that_do_not_add_up_are_refused(zmq_mesh: Mesh) -> None:
    far = await zmq_mesh.node("far")
    attacker = Attacker(far.endpoint, b"raw|1|1")
    hello = Hello("raw", 1)
    for claimed in (3, 0, -1):
        record = AskRecord(1, "w", "blob", 1000, b"", claimed)
        attacker.send([bytes(encode_bundle(1, 0, [hello, record])[0]), b"the one there is"])
    await until_refused(far, "malformed", 3)
    attacker.close()


def valid_bundles(rng: random.Random, name: str, epoch: int) -> list[list[bytes]]:
    """A session as an honest dialler would lead it."""
    echo, count, hang = (codec.encode(message)[1] for message in (Echo(1, "text"), Count(3), Hang()))
    records: list[list[Any]] = [
        [Hello(name, epoch)],
        [Hello(name, epoch), AskRecord(rng.randrange(1 << 30), "witness", "echo", 1000, echo)],
        [Open(rng.randrange(1 << 30), "witness", "count", 500, 1000, count)],
        [Open(rng.randrange(1 << 30), "witness", "hang", 50, 1000, hang)],
        [AskRecord(rng.randrange(1 << 30), "witness", "note", 1000, codec.encode(Echo(3))[1])],
        [Credit([1, 2, 3, 4])],
        [Cancel([1, 2, 3])],
        [Farewell()],
    ]
    return [[bytes(frame) for frame in encode_bundle(epoch, 0, some)] for some in records]


async def bombard(mesh: Mesh, count: int, seed: int) -> None:
    """Mutated frames from diallers that have said a proper Hello; then the node must answer as before."""
    rng = random.Random(seed)
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    await far.spawn(Witness(), "steady")
    attackers = [(Attacker(far.endpoint, routing_id(f"evil{k}", 1, 1)), f"evil{k}") for k in range(4)]
    for sent in range(count):
        attacker, name = attackers[sent % len(attackers)]
        if sent % 50 == 0:
            await attacker.send_when_it_fits([bytes(encode_bundle(1, 0, [Hello(name, 1)])[0])])
        await attacker.send_when_it_fits(mutate(rng, rng.choice(valid_bundles(rng, name, 1))))
        if sent % 20 == 0:
            await asyncio.sleep(0)
    ref = near.ref(far.endpoint, "steady")
    assert await ref.ask(Echo(5), timeout=20.0) == Echo(5)
    async with ref.stream(Count(100), timeout=20.0) as stream:
        assert len([item async for item in stream]) == 100
    for attacker, _ in attackers:
        attacker.close()
    assert far.metrics.handler_errors == 0
    assert far.metrics.refused["malformed"] > count / 10


async def test_mutated_frames_do_not_hurt_a_node(zmq_mesh: Mesh, caplog: pytest.LogCaptureFixture) -> None:
    await bombard(zmq_mesh, 2000, seed=1)
    assert caplog.records == [], "nothing was thrown into the event loop"


@pytest.mark.slow
async def test_a_hundred_thousand_mutated_frames_do_not_hurt_a_node(
    zmq_mesh: Mesh, caplog: pytest.LogCaptureFixture
) -> None:
    await bombard(zmq_mesh, 100_000, seed=2)
    assert caplog.records == [], "nothing was thrown into the event loop"


async def test_a_peer_that_does_not_read_holds_up_nobody_else_and_loses_nothing(zmq_mesh: Mesh) -> None:
    patient = Timing(silence=60.0)
    far, near = await zmq_mesh.node("far", timing=patient), await zmq_mesh.node("near")
    await far.spawn(Witness(), "witness")
    sleeper = Attacker(far.endpoint, routing_id("sleeper", 1, 1))
    streams, items = 40, 120
    opens = [
        Open(1 + index, "witness", "count", 60_000, 1 << 22, codec.encode(Count(items, pad=20_000))[1])
        for index in range(streams)
    ]
    sleeper.send([bytes(frame) for frame in encode_bundle(1, 0, [Hello("sleeper", 1), *opens])])
    peers = far._accepted
    await until(lambda: any(not peer.outbox.has_room for peer in peers.values()))
    assert far._gauges().outbox_bytes < 17 << 20, "its outbox is full, and that is all"
    ref = near.ref(far.endpoint, "witness")
    for number in range(20):
        assert await ref.ask(Echo(number), timeout=5.0) == Echo(number)
    got: dict[int, list[int]] = {index: [] for index in range(1, streams + 1)}

    def read_all() -> None:
        while any(len(numbers) < items for numbers in got.values()):
            assert sleeper.heard(5000), "the rest does not come"
            for record in decode_for_dialler(sleeper.socket.recv_multipart()).records:
                if isinstance(record, Item):
                    got[record.id].append(codec.decode(record.kind, record.body).number)

    await asyncio.to_thread(read_all)
    assert all(numbers == list(range(items)) for numbers in got.values())
    sleeper.close()


async def test_windows_are_granted_within_bounds(zmq_mesh: Mesh) -> None:
    far = await zmq_mesh.node("far")
    await far.spawn(Witness(max_streams=10_000), "witness")
    greedy = Attacker(far.endpoint, routing_id("greedy", 1, 1))
    body = codec.encode(Hang())[1]
    opens = [Open(1 + index, "witness", "hang", 2**63, 2**63, body) for index in range(PEER_WINDOWS // MAX_WINDOW + 5)]
    greedy.send([bytes(frame) for frame in encode_bundle(1, 0, [Hello("greedy", 1), *opens])])
    await until_refused(far, "busy", 5)
    (peer,) = far._accepted.values()
    assert sum(writer.window for writer in peer.writers.values()) <= PEER_WINDOWS
    greedy.close()


async def test_a_fault_of_ours_costs_one_message_not_the_socket(
    zmq_mesh: Mesh, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    far, near = await zmq_mesh.node("far"), await zmq_mesh.node("near")
    await far.spawn(Witness(), "witness")
    ref = near.ref(far.endpoint, "witness")
    await ref.ask(Echo(), timeout=5.0)
    monkeypatch.setattr(far._accepted[next(iter(far._accepted))], "received", None)
    with pytest.raises((PeerLost, DeadlineExceeded)):
        await ref.ask(Echo(), timeout=0.1)
    monkeypatch.undo()
    assert await ref.ask(Echo(2), timeout=5.0) == Echo(2)
    assert far.metrics.refused["internal"] >= 1 and "could not be taken" in caplog.text


FLOODED = """
import sys, time, zmq
from mesh.transport import MessageLimits
from mesh.transport.zmq_socket import set_options
door, flood = zmq.Context(), zmq.Context()
router, dealer = door.socket(zmq.ROUTER), flood.socket(zmq.DEALER)
for socket in (router, dealer):
    set_options(socket, sys.argv[1], MessageLimits(queued_messages=16))
router.bind(sys.argv[1])
dealer.connect(sys.argv[1])
dealer.setsockopt(zmq.SNDTIMEO, 100)
try:
    for _ in range(10_000):
        dealer.send(bytes(1000))
except zmq.Again:
    pass
dealer.close(0)
flood.term()
time.sleep(1.5)
while router.poll(50):
    router.recv_multipart()
print("alive")
"""


def test_a_peer_that_dies_while_our_queue_from_it_is_full_does_not_take_us_along(tmp_path: Path) -> None:
    """Turn ZMTP heartbeats on, and libzmq aborts here. In a process of its own, for that reason."""
    arguments = [sys.executable, "-c", FLOODED, f"ipc://{tmp_path}/flood.sock"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr


# Leaks -----------------------------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_stopped_node_leaves_no_descriptor_and_no_task(tmp_path: Path) -> None:
    async def life(number: int) -> None:
        far = Node(ZmqTransport(), codec, name="far")
        near = Node(ZmqTransport(), codec, name="near")
        await far.start(f"ipc://{tmp_path}/{number}.sock")
        await near.start(f"ipc://{tmp_path}/n{number}.sock")
        await far.spawn(Witness(), "witness")
        ref = near.ref(far.endpoint, "witness")
        await ref.ask(Echo(), timeout=5.0)
        asking = asyncio.ensure_future(ref.ask(Hang(), timeout=60.0))
        async with ref.stream(Hang(), timeout=60.0) as stream:
            await anext(stream)
            await near.stop()
            with pytest.raises(PeerLost):
                await asking
        await far.stop()

    await life(0)
    files, tasks = open_files(), len(asyncio.all_tasks())
    for number in range(1, 11):
        await life(number)
    await until(lambda: open_files() <= files and len(asyncio.all_tasks()) <= tasks)
