"""Streams: exactly once and in order, under byte credits, until their connection ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from mesh_doubles.clock import FakeClock
from mesh_doubles.memory import MemoryNetwork, MemoryTransport
from mesh_doubles.messages import KINDS, Count, Echo, Fail, Hang, Note, Number, Witness, until

from mesh.accepted import MAX_WINDOW, PEER_WINDOWS
from mesh.actor import Actor, Call
from mesh.codec import Codec
from mesh.envelope import Credit
from mesh.errors import Busy, DeadlineExceeded, Malformed, MeshError, NotRunning, PeerLost, RemoteError, UnknownKind
from mesh.node import Node
from mesh.stream import ITEM_WEIGHT, StreamReader, StreamWriter
from mesh.timing import Timing
from mesh.transport import Sent

Mesh = Any  # the fixtures of conftest.py
MakeNode = Callable[..., Awaitable[Node]]


async def test_items_arrive_once_and_in_order_then_the_end(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    async with near.ref(far.endpoint, "witness").stream(Count(5000), timeout=20.0) as stream:
        assert [item.number async for item in stream] == list(range(5000))


async def test_sixty_four_streams_share_messages(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")

    async def read(start: int) -> list[int]:
        async with near.ref(far.endpoint, "witness").stream(Count(start + 200, start), timeout=30.0) as stream:
            return [item.number async for item in stream]

    got = await asyncio.gather(*(read(start) for start in range(64)))
    assert got == [list(range(start, start + 200)) for start in range(64)]
    assert far.metrics.bundles["sent"] < 64 * 200 / 8


async def test_a_reader_that_does_not_read_stops_the_writer_at_the_window(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    window, pad = 10_000, 1000
    async with near.ref(far.endpoint, "witness").stream(Count(100, pad=pad), timeout=20.0, window=window) as stream:
        await asyncio.wait_for(witness.until("offered", 9), 5.0)
        # An answer that comes after the writer had every chance to go on.
        for number in range(20):
            await near.ref(far.endpoint, "witness").ask(Echo(number), timeout=5.0)
        assert witness.offered == 9, "nine items of a little over 1000 bytes fit into 10 000"
        assert [item.number async for item in stream] == list(range(100))


async def test_an_item_larger_than_the_window_goes_when_nothing_else_is_unread(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    async with near.ref(far.endpoint, "witness").stream(Count(5, pad=50_000), timeout=20.0, window=1000) as stream:
        assert [item.number async for item in stream] == list(range(5))


class Offering(Actor):
    """Writes without waiting until it has no credit, then says how far it came."""

    streams: ClassVar = {Count: "count"}

    def __init__(self) -> None:
        self.accepted = 0
        self.full = asyncio.Event()

    async def count(self, message: Count, call: Call, out: StreamWriter) -> None:
        for number in range(message.stop):
            while not out.offer(Number(number, bytes(message.pad))):
                self.full.set()
                await out.writable()
            self.accepted += 1


async def test_offer_without_credit_queues_nothing(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    offering = Offering()
    await far.spawn(offering, "offering")
    stream = near.ref(far.endpoint, "offering").stream(Count(40, pad=100), timeout=20.0, window=1000)
    async with stream:
        await asyncio.wait_for(offering.full.wait(), 5.0)
        assert offering.accepted == 1000 // (100 + ITEM_WEIGHT + 4)
        assert [item.number async for item in stream] == list(range(40))


async def test_leaving_the_block_cancels_the_far_handler(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    async with near.ref(far.endpoint, "witness").stream(Hang(), timeout=60.0) as stream:
        await anext(stream)
    await asyncio.wait_for(witness.until("cancelled", 1), 5.0)


async def test_cancelling_the_reader_cancels_the_far_handler(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")

    async def read() -> None:
        async with near.ref(far.endpoint, "witness").stream(Hang(), timeout=60.0) as stream:
            async for _ in stream:
                pass

    reading = asyncio.ensure_future(read())
    await asyncio.wait_for(witness.until("started", 1), 5.0)
    reading.cancel()
    await asyncio.wait_for(witness.until("cancelled", 1), 5.0)
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_stream_left_at_once_never_leaves_a_handler(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")
    for _ in range(50):
        async with ref.stream(Hang(), timeout=60.0):
            pass
    await ref.ask(Echo(), timeout=5.0)
    await asyncio.wait_for(witness.until("cancelled", witness.started), 5.0)
    await until_free(far, near)


async def until_free(*nodes: Node) -> None:
    """Until no node knows of a call or a stream; fails by the test's own time limit."""
    await until(lambda: not any(open_calls(node) for node in nodes))


def open_calls(node: Node) -> int:
    state = node._gauges()
    return sum(state.streams_open.values()) + sum(peer.busy for peer in node._dialled.values())


async def test_both_ends_forget_a_stream_that_has_ended(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    for _ in range(20):
        async with near.ref(far.endpoint, "witness").stream(Count(10), timeout=10.0) as stream:
            assert len([item async for item in stream]) == 10
    await until_free(far, near)


async def test_a_handler_that_refuses_ends_the_stream_with_its_reason_after_the_items(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    got: list[int] = []
    with pytest.raises(RemoteError) as caught:
        async with near.ref(far.endpoint, "witness").stream(Count(30, fail=True), timeout=10.0) as stream:
            async for item in stream:
                got.append(item.number)
    assert caught.value.reason == "counted_out"
    assert got == list(range(30))


async def test_an_unforeseen_exception_ends_the_stream(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    with pytest.raises(RemoteError, match="internal: ZeroDivisionError"):
        async with near.ref(far.endpoint, "witness").stream(Fail(), timeout=10.0) as stream:
            await anext(stream)


@pytest.mark.parametrize(
    ("actor", "message", "error"), [("nobody", Count(1), NotRunning), ("witness", Echo(), UnknownKind)]
)
async def test_a_stream_that_cannot_start_says_why(
    mesh: Mesh, actor: str, message: Any, error: type[Exception]
) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    with pytest.raises(error):
        async with near.ref(far.endpoint, actor).stream(message, timeout=10.0) as stream:
            await anext(stream)


async def test_more_streams_than_an_actor_takes_are_busy(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(max_streams=2), "witness")
    ref = near.ref(far.endpoint, "witness")
    async with ref.stream(Hang(), timeout=10.0) as one, ref.stream(Hang(), timeout=10.0) as two:
        await anext(one), await anext(two)
        with pytest.raises(Busy):
            async with ref.stream(Hang(), timeout=10.0) as three:
                await anext(three)


async def test_a_stream_ends_at_its_deadline_on_both_sides(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    with pytest.raises(DeadlineExceeded):
        async with near.ref(far.endpoint, "witness").stream(Hang(), timeout=0.2) as stream:
            async for _ in stream:
                pass
    # On a busy machine the time may be up before the handler starts; then it must not start.
    await until_free(far, near)
    assert witness.cancelled == witness.started


async def test_the_deadline_ends_both_sides_at_its_time(still_node: MakeNode, clock: FakeClock) -> None:
    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    witness = Witness()
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")

    async def read() -> None:
        async with ref.stream(Hang(), timeout=30.0) as stream:
            async for _ in stream:
                pass

    work = [asyncio.ensure_future(read()), asyncio.ensure_future(ref.ask(Hang(), timeout=30.0))]
    await clock.advance(29.9)
    assert (witness.started, witness.cancelled) == (2, 0) and not any(task.done() for task in work)
    await clock.advance(0.2)
    assert witness.cancelled == 2
    for task in work:
        with pytest.raises(DeadlineExceeded):
            await task


async def test_a_writer_whose_reader_is_gone_is_told(mesh: Mesh) -> None:
    errors: list[Exception] = []

    class Stubborn(Actor):
        streams: ClassVar = {Count: "count"}

        async def count(self, message: Count, call: Call, out: StreamWriter) -> None:
            out.offer(Number(0))
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            try:
                out.offer(Number(1))
            except PeerLost as error:
                errors.append(error)
                done.set()

    done = asyncio.Event()
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Stubborn(), "stubborn")
    async with near.ref(far.endpoint, "stubborn").stream(Count(1), timeout=10.0) as stream:
        await anext(stream)
    await asyncio.wait_for(done.wait(), 5.0)
    assert len(errors) == 1


async def test_an_item_the_reader_cannot_decode_ends_the_stream(mesh: Mesh) -> None:
    far = await mesh.node("far")
    near = await mesh.node("near", codec=Codec({"count": KINDS["count"]}))
    witness = Witness()
    await far.spawn(witness, "witness")
    with pytest.raises(UnknownKind):
        async with near.ref(far.endpoint, "witness").stream(Count(10), timeout=10.0) as stream:
            await anext(stream)
    await until_free(far, near)


async def test_a_writer_kept_after_its_handler_has_ended_says_so(mesh: Mesh) -> None:
    kept: list[StreamWriter] = []

    class Careless(Actor):
        streams: ClassVar = {Count: "count"}

        async def count(self, message: Count, call: Call, out: StreamWriter) -> None:
            kept.append(out)

    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Careless(), "careless")
    async with near.ref(far.endpoint, "careless").stream(Count(1), timeout=5.0) as stream:
        assert [item async for item in stream] == []
    with pytest.raises(NotRunning):
        kept[0].offer(Number(1))


async def test_two_tasks_cannot_read_one_stream(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    async with near.ref(far.endpoint, "witness").stream(Hang(), timeout=10.0) as stream:
        await anext(stream)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="two tasks"):
            await anext(stream)
        first.cancel()


# Bad networks, with time standing still -----------------------------------------------------------------------


async def drive(clock: FakeClock, work: Awaitable[Any], *, step: float = 0.02, limit: float = 600.0) -> Any:
    """Let time pass until the work is done."""
    task = asyncio.ensure_future(work)
    passed = 0.0
    while not task.done():
        assert passed < limit, "still not done"
        await clock.advance(step)
        passed += step
    return task.result()


@pytest.mark.parametrize("fault", ["drop", "duplicate", "reorder"])
async def test_what_arrives_over_a_bad_network_is_the_beginning_in_order_and_all_of_it_or_an_error(
    still_node: MakeNode, clock: FakeClock, fault: str
) -> None:
    """A connection does none of this before it ends. Should one do so, a stream breaks and never lies."""
    network = MemoryNetwork(7, delay=0.001, jitter=0.05, clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    await far.spawn(Witness(), "witness")

    async def read(start: int) -> bool:
        stream = near.ref(far.endpoint, "witness").stream(Count(start + 100, start, pad=50), timeout=5.0, window=1000)
        got: list[int] = []
        with contextlib.suppress(MeshError):
            async with stream:
                async for item in stream:
                    got.append(item.number)
                    # So that the credits of one window leave one by one, and several bundles are on their way.
                    await clock.settle(3)
                assert len(got) == 100, "a proper end comes after all items"
        assert got == list(range(start, start + len(got)))
        return len(got) == 100

    assert await drive(clock, read(1000))
    setattr(network, fault, 0.02)
    whole = [await drive(clock, read(start)) for start in range(30)]
    assert 0 < whole.count(False) < 30
    setattr(network, fault, 0.0)
    await clock.advance(10.0)
    assert open_calls(far) == 0 and open_calls(near) == 0, "both ends are free again"
    assert await drive(clock, read(2000))


@pytest.mark.parametrize("seed", range(6))
async def test_a_call_is_made_at_most_once_however_often_it_arrives(
    still_node: MakeNode, clock: FakeClock, seed: int
) -> None:
    network = MemoryNetwork(seed, duplicate=0.9, clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    witness = Witness()
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")
    for number in range(30):
        await drive(clock, ref.ask(Echo(number), timeout=10.0))
        await drive(clock, ref.ask(Note(number), timeout=10.0))
    await clock.advance(1.0)
    assert len(witness.calls) == 30 and witness.notes == list(range(30))
    assert far.metrics.dropped["duplicate_call"] > 0


async def test_a_connection_that_ends_breaks_streams_and_asks_on_both_sides_at_once(
    still_node: MakeNode, clock: FakeClock
) -> None:
    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    witness = Witness()
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")

    async def read() -> None:
        async with ref.stream(Hang(), timeout=100.0) as stream:
            await anext(stream)
            await anext(stream)

    work = [asyncio.ensure_future(read()), asyncio.ensure_future(ref.ask(Hang(), timeout=100.0))]
    await clock.settle()
    assert witness.started == 2
    network.cut(far.endpoint)
    await clock.settle()
    for each in work:
        with pytest.raises(PeerLost, match="ended"):
            each.result()
    await clock.advance(2 * near.timing.sweep)
    assert witness.cancelled == 2
    assert open_calls(far) == 0 and open_calls(near) == 0
    # The next call waits for the next connection, which starts from nothing.
    clock.call_later(0.5, network.mend, far.endpoint)
    assert await drive(clock, ref.ask(Echo(8), timeout=5.0)) == Echo(8)


async def test_one_that_was_given_up_while_it_slept_learns_so_when_it_wakes(
    still_node: MakeNode, clock: FakeClock
) -> None:
    network = MemoryNetwork(clock=clock)
    # The dialler waits longer than its acceptor.
    far = await still_node(network, "far")
    near = await still_node(network, "near", timing=Timing(silence=100.0, farewell=0.01))
    witness = Witness()
    await far.spawn(witness, "witness")
    asking = asyncio.ensure_future(near.ref(far.endpoint, "witness").ask(Hang(), timeout=1000.0))
    await clock.advance(0.1)
    network.silence(far.endpoint)
    await clock.advance(far.timing.silence + 1.0)
    assert witness.cancelled == 1 and not asking.done()
    network.unsilence(far.endpoint)
    await clock.advance(1.0)
    with pytest.raises(PeerLost, match="forgotten"):
        asking.result()


async def test_a_dialler_that_leaves_no_room_for_answers_is_given_up(still_node: MakeNode, clock: FakeClock) -> None:
    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    witness = Witness(mailbox_size=100_000)
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")
    assert await drive(clock, ref.ask(Echo(), timeout=5.0)) == Echo()
    (peer,) = far._accepted.values()
    peer.outbox._limit_records = 4
    with pytest.MonkeyPatch.context() as full:
        full.setattr(MemoryTransport, "reply", lambda *_: Sent.FULL)
        asking = [asyncio.ensure_future(ref.ask(Echo(number), timeout=60.0)) for number in range(20)]
        await clock.settle()
    assert far.metrics.dropped["answer_without_room"] == 1 and peer not in far._accepted.values()
    await clock.advance(2.0)
    ends = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(end) for end in ends} == {PeerLost}, "none of them waits for its deadline"


async def test_a_peer_that_falls_silent_is_lost_for_both(still_node: MakeNode, clock: FakeClock) -> None:
    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    witness = Witness()
    await far.spawn(witness, "witness")

    async def read() -> None:
        async with near.ref(far.endpoint, "witness").stream(Hang(), timeout=100.0) as stream:
            await anext(stream)
            network.silence(far.endpoint)
            await anext(stream)

    with pytest.raises(PeerLost):
        await drive(clock, read(), limit=5.0)
    await drive(clock, witness.until("cancelled", 1), limit=5.0)


async def test_a_quiet_stream_is_kept_alive(still_node: MakeNode, clock: FakeClock) -> None:
    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    witness = Witness()
    await far.spawn(witness, "witness")
    async with near.ref(far.endpoint, "witness").stream(Hang(), timeout=1000.0) as stream:
        await drive(clock, anext(stream))
        waiting = asyncio.ensure_future(anext(stream))
        await clock.advance(60.0)
        assert not waiting.done() and witness.cancelled == 0
        waiting.cancel()


async def test_a_small_credit_reaches_the_writer_in_time(still_node: MakeNode, clock: FakeClock) -> None:
    """A small item is read, and what it frees is less than a quarter of the window; the next one needs all of it."""

    class Uneven(Actor):
        streams: ClassVar = {Count: "count"}

        async def count(self, message: Count, call: Call, out: StreamWriter) -> None:
            for number in range(message.stop):
                await out.send(Number(number, bytes(970 if number % 2 else 10)))

    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    await far.spawn(Uneven(), "uneven")

    async def read() -> int:
        async with near.ref(far.endpoint, "uneven").stream(Count(20), timeout=5.0, window=1000) as stream:
            return len([item async for item in stream])

    assert await drive(clock, read(), limit=2.0) == 20


async def test_a_full_transport_holds_the_writer_and_loses_nothing(still_node: MakeNode, clock: FakeClock) -> None:
    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    await far.spawn(Witness(), "witness")
    async with near.ref(far.endpoint, "witness").stream(Count(100), timeout=100.0) as stream:
        assert (await drive(clock, anext(stream))).number == 0
        network.hold(far.endpoint)
        clock.call_later(2.0, network.release, far.endpoint)

        async def rest() -> list[int]:
            return [item.number async for item in stream]

        assert await drive(clock, rest()) == list(range(1, 100))


async def test_credit_for_more_than_was_sent_is_no_credit(still_node: MakeNode, clock: FakeClock) -> None:
    """Else a reader could have a writer fill its memory."""
    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    witness = Witness()
    await far.spawn(witness, "witness")
    async with near.ref(far.endpoint, "witness").stream(Count(100, pad=1000), timeout=60.0, window=5000) as stream:
        await clock.settle()
        assert witness.offered == 4
        near.peer(far.endpoint).outbox.put(Credit([stream.id, 1 << 40]), 0)
        await clock.settle()
        assert witness.offered == 4


async def test_a_peers_streams_share_a_bound_of_bytes_and_an_ended_one_gives_its_part_back(
    still_node: MakeNode, clock: FakeClock
) -> None:
    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    await far.spawn(Witness(), "witness")

    def opened() -> StreamReader:
        return near.ref(far.endpoint, "witness").stream(Hang(), timeout=60.0, window=2 * MAX_WINDOW)

    async with contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(opened()) for _ in range(PEER_WINDOWS // MAX_WINDOW)]
        for each in streams:
            await anext(each)
        with pytest.raises(Busy, match="too many streams for one peer"):
            await anext(await stack.enter_async_context(opened()))
        streams[0].close()
        await anext(await stack.enter_async_context(opened()))


async def test_a_writer_that_ignores_its_credit_is_cut_off(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")

    class Greedy(Actor):
        streams: ClassVar = {Count: "count"}

        async def count(self, message: Count, call: Call, out: StreamWriter) -> None:
            out.window = 1 << 30
            for number in range(100):
                await out.send(Number(number, bytes(1000)))

    await far.spawn(Greedy(), "greedy")
    with pytest.raises(Malformed, match="more than its credit"):
        async with near.ref(far.endpoint, "greedy").stream(Count(1), timeout=5.0, window=5000) as stream:
            await asyncio.sleep(0.05)
            async for _ in stream:
                await asyncio.sleep(0)
