"""Asks between nodes: answers, refusals, deadlines, cancelling, bounded mailboxes, stopping, epochs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mesh_doubles.clock import FakeClock
from mesh_doubles.memory import MemoryNetwork
from mesh_doubles.messages import KINDS, Blob, Count, Echo, Fail, Hang, Note, Witness, codec, until

from mesh.actor import Actor, Call
from mesh.codec import Codec, RawFrame
from mesh.envelope import AskRecord
from mesh.errors import (
    Busy,
    DeadlineExceeded,
    Draining,
    MeshError,
    NotReached,
    NotRunning,
    PeerLost,
    RemoteError,
    Stale,
    TooLarge,
    UnknownKind,
)
from mesh.node import Node

Mesh = Any  # the fixture of conftest.py


async def test_an_ask_is_answered(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    answer = await near.ref(far.endpoint, "witness").ask(Echo(7, "hello"), timeout=5.0)
    assert answer == Echo(7, "hello")


async def test_the_call_tells_who_asks_and_how_long_they_wait(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    await near.ref(far.endpoint, "witness").ask(Echo(), timeout=5.0)
    call = witness.calls[0]
    assert (call.peer, call.epoch) == ("near", near.epoch)
    assert 0 < call.deadline_left() <= 5.0


async def test_a_local_actor_is_reached_the_same_way(mesh: Mesh) -> None:
    node = await mesh.node("here")
    ref = await node.spawn(Witness(), "witness")
    assert await ref.ask(Echo(1), timeout=5.0) == Echo(1)
    assert ref == node.ref(node.endpoint, "witness")


async def test_a_handler_that_returns_nothing_says_that_it_is_done(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    assert await near.ref(far.endpoint, "witness").ask(Note(4), timeout=5.0) is None
    assert witness.notes == [4]


async def test_calls_arrive_in_order(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness(concurrency=1)
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")
    await asyncio.gather(*(ref.ask(Note(number), timeout=5.0) for number in range(100)))
    assert witness.notes == list(range(100))


async def test_a_thousand_asks_at_once_get_their_own_answers(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(mailbox_size=2000), "witness")
    ref = near.ref(far.endpoint, "witness")
    answers = await asyncio.gather(*(ref.ask(Echo(number), timeout=20.0) for number in range(1000)))
    assert [answer.number for answer in answers] == list(range(1000))
    assert near.metrics.bundles["sent"] < 100, "asks of one tick travel together"


async def test_raw_frames_travel_beside_the_body(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    ref = near.ref(far.endpoint, "witness")
    tensors = [Blob(f"t{size}", RawFrame(bytes([size % 251]) * size)) for size in (1, 100, 100_000, 3_000_000)]
    answers = await asyncio.gather(*(ref.ask(tensor, timeout=10.0) for tensor in tensors))
    assert answers == tensors


async def test_a_refusal_carries_the_handlers_reason(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    with pytest.raises(RemoteError) as caught:
        await near.ref(far.endpoint, "witness").ask(Fail("too_long"), timeout=5.0)
    assert (caught.value.reason, caught.value.message) == ("too_long", "as asked")


async def test_an_unforeseen_exception_gives_away_its_type_only(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    with pytest.raises(RemoteError) as caught:
        await near.ref(far.endpoint, "witness").ask(Fail(), timeout=5.0)
    assert (caught.value.reason, caught.value.message) == ("internal", "ZeroDivisionError")
    assert far.metrics.handler_errors == 1


async def test_what_the_actor_does_not_handle_is_an_unknown_kind(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    ref = near.ref(far.endpoint, "witness")
    with pytest.raises(UnknownKind):
        await ref.ask(Count(1), timeout=5.0)
    with pytest.raises(UnknownKind):
        await ref.ask(object(), timeout=5.0)


async def test_a_kind_only_the_caller_knows_is_refused_by_the_far_side(mesh: Mesh) -> None:
    far = await mesh.node("far", codec=Codec({"echo": Echo}))
    near = await mesh.node("near")

    class OnlyEcho(Actor):
        handlers = {Echo: "echo"}  # noqa: RUF012

        async def echo(self, message: Echo, call: object) -> Echo:
            return message

    await far.spawn(OnlyEcho(), "echo")
    ref = near.ref(far.endpoint, "echo")
    with pytest.raises(UnknownKind):
        await ref.ask(Note(1), timeout=5.0)
    assert far.metrics.refused["unknown_kind"] == 1
    assert "note" not in far.metrics.received_kinds, "a stranger's kind makes no metric label"


async def test_an_absent_actor_is_not_running(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    with pytest.raises(NotRunning):
        await near.ref(far.endpoint, "nobody").ask(Echo(), timeout=5.0)


async def test_a_message_above_the_limit_is_not_sent(mesh: Mesh) -> None:
    near = await mesh.node("near", codec=Codec(KINDS, max_body=1000))
    ref = near.ref(near.endpoint, "witness")
    with pytest.raises(TooLarge):
        await ref.ask(Echo(0, "x" * 2000), timeout=5.0)


async def test_a_message_above_the_receivers_limit_is_refused_there(mesh: Mesh) -> None:
    far = await mesh.node("far", codec=Codec(KINDS, max_body=1000))
    near = await mesh.node("near")
    await far.spawn(Witness(), "witness")
    with pytest.raises(TooLarge):
        await near.ref(far.endpoint, "witness").ask(Echo(0, "x" * 2000), timeout=5.0)


async def test_an_ask_ends_at_its_deadline_and_so_does_the_handler(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    with pytest.raises(DeadlineExceeded):
        await near.ref(far.endpoint, "witness").ask(Hang(), timeout=0.2)
    # On a busy machine the time may be up before the handler starts; then it must not start.
    await until(lambda: not any(peer.busy for peer in far._accepted.values()))
    assert witness.cancelled == witness.started


@pytest.mark.parametrize("answered", [True, False])
async def test_after_a_standstill_answers_are_read_before_deadlines_count(
    answered: bool, still_node: Callable[..., Awaitable[Node]], clock: FakeClock
) -> None:
    """As when a library holds the interpreter: timers are looked at before sockets are."""

    class Slow(Witness):
        async def note(self, message: Note, call: Call) -> None:
            await here.wait()

    here, network = asyncio.Event(), MemoryNetwork()
    far, near = await still_node(network, "far", clock=FakeClock()), await still_node(network, "near")
    await far.spawn(Slow(), "slow")
    asking = asyncio.ensure_future(near.ref(far.endpoint, "slow").ask(Note(1), timeout=1.5))
    await clock.settle()
    clock.stall(2.0)
    await clock.advance(0.0)
    assert not asking.done()
    if answered:
        here.set()
    await clock.advance(0.2)
    if answered:
        assert await asking is None
    else:
        with pytest.raises(DeadlineExceeded):
            await asking


async def test_no_time_is_no_call(mesh: Mesh) -> None:
    near = await mesh.node("near")
    with pytest.raises(DeadlineExceeded):
        await near.ref(mesh.endpoint("nowhere"), "witness").ask(Echo(), timeout=0)


async def test_cancelling_the_caller_cancels_the_far_handler(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness(concurrency=1)
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")
    asking = asyncio.ensure_future(ref.ask(Hang(), timeout=60.0))
    await asyncio.wait_for(witness.until("started", 1), 5.0)
    asking.cancel()
    await asyncio.wait_for(witness.until("cancelled", 1), 5.0)
    assert await ref.ask(Echo(3), timeout=5.0) == Echo(3), "the worker lives on"


async def test_mail_cancelled_before_its_turn_is_never_handled(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness(concurrency=1)
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")
    first = asyncio.ensure_future(ref.ask(Hang(1), timeout=60.0))
    await asyncio.wait_for(witness.until("started", 1), 5.0)
    second = asyncio.ensure_future(ref.ask(Hang(2), timeout=60.0))
    third = asyncio.ensure_future(ref.ask(Echo(3), timeout=60.0))
    await until(lambda: "echo" in far.metrics.received_kinds)
    second.cancel()
    await asyncio.sleep(0)
    first.cancel()
    assert (await third).number == 3
    assert witness.started == 1


async def test_mail_whose_time_is_up_before_its_turn_is_never_handled(
    still_node: Callable[..., Awaitable[Node]], clock: FakeClock
) -> None:
    """Also where nobody can say that its caller waits no longer."""

    class Slow(Witness):
        async def note(self, message: Note, call: Call) -> None:
            await super().note(message, call)
            await go_on.wait()

    go_on, slow = asyncio.Event(), Slow(concurrency=1)
    network = MemoryNetwork(clock=clock)
    far, near = await still_node(network, "far"), await still_node(network, "near")
    await far.spawn(slow, "slow")
    ref = near.ref(far.endpoint, "slow")
    asks = [asyncio.ensure_future(ref.ask(Note(number), timeout=wait)) for number, wait in ((1, 60.0), (2, 1.0))]
    await clock.settle()
    network.silence(far.endpoint)
    await clock.advance(1.5)
    go_on.set()
    await clock.settle()
    assert slow.notes == [1]
    for each in asks:
        each.cancel()
    await asyncio.gather(*asks, return_exceptions=True)


async def test_a_call_that_was_cancelled_leaves_nothing_of_it_in_its_worker(mesh: Mesh) -> None:
    """A count of cancels that stays would break the timeouts and task groups of the next handler."""

    class Counting(Witness):
        async def echo(self, message: Echo, call: Call) -> Echo:
            task = asyncio.current_task()
            return Echo(task.cancelling() if task else -1)

    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Counting(concurrency=1)
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")
    cancelled = asyncio.ensure_future(ref.ask(Hang(), timeout=60.0))
    next_one = asyncio.ensure_future(ref.ask(Echo(7), timeout=60.0))
    await until(lambda: "echo" in far.metrics.received_kinds and witness.started == 1)
    cancelled.cancel()
    assert await next_one == Echo(0)


async def test_a_full_mailbox_says_busy(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(concurrency=1, mailbox_size=2), "witness")
    ref = near.ref(far.endpoint, "witness")
    asks = [asyncio.ensure_future(ref.ask(Hang(number), timeout=60.0)) for number in range(10)]
    # One runs, two lie in the box.
    await until(lambda: sum(each.done() for each in asks) >= 7)
    assert all(isinstance(each.exception(), Busy) for each in asks if each.done())
    for each in asks:
        each.cancel()


async def test_mail_left_when_actor_stops_gets_an_error(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness(concurrency=1)
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")
    running = asyncio.ensure_future(ref.ask(Hang(), timeout=60.0))
    await asyncio.wait_for(witness.until("started", 1), 5.0)
    waiting = [asyncio.ensure_future(ref.ask(Echo(number), timeout=60.0)) for number in range(5)]
    await far.stop_actor("witness")
    ends = await asyncio.gather(running, *waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [NotRunning] * 6
    assert witness.stopped
    with pytest.raises(NotRunning):
        await ref.ask(Echo(), timeout=5.0)


async def test_an_actor_can_stop_itself(mesh: Mesh) -> None:
    class Mortal(Witness):
        async def echo(self, message: Echo, call: object) -> Echo:
            await node.stop_actor("mortal")
            return message

    node = await mesh.node("here")
    mortal = Mortal()
    ref = await node.spawn(mortal, "mortal")
    assert await ref.ask(Echo(3), timeout=5.0) == Echo(3)
    assert node.actors == [] and mortal.stopped


async def test_an_actor_whose_start_fails_is_not_there(mesh: Mesh) -> None:
    class Stillborn(Witness):
        async def on_start(self) -> None:
            raise RuntimeError("no")

    node = await mesh.node("here")
    with pytest.raises(RuntimeError, match="no"):
        await node.spawn(Stillborn(), "stillborn")
    assert node.actors == []


async def test_an_actor_gets_no_call_before_its_start_has_ended(mesh: Mesh) -> None:
    class Slow(Witness):
        def __init__(self) -> None:
            super().__init__()
            self.may_start = asyncio.Event()

        async def on_start(self) -> None:
            await self.may_start.wait()

    far, near = await mesh.node("far"), await mesh.node("near")
    slow = Slow()
    starting = asyncio.create_task(far.spawn(slow, "witness"))
    ref = near.ref(far.endpoint, "witness")
    with pytest.raises(NotRunning, match="yet"):
        await ref.ask(Echo(1), timeout=5.0)
    assert not slow.calls
    slow.may_start.set()
    await starting
    assert await ref.ask(Echo(2), timeout=5.0) == Echo(2)


async def test_a_draining_node_takes_no_new_work_and_finishes_what_runs(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    ref = near.ref(far.endpoint, "witness")
    async with ref.stream(Count(50, pad=4000), timeout=10.0, window=20_000) as stream:
        first = await anext(stream)
        far.draining = True
        with pytest.raises(Draining):
            await ref.ask(Echo(), timeout=5.0)
        assert [first.number, *[item.number async for item in stream]] == list(range(50))


async def test_nobody_at_the_endpoint_is_a_lost_peer_not_a_hang(mesh: Mesh) -> None:
    near = await mesh.node("near", timing=mesh.quick)
    with pytest.raises(NotReached):
        await near.ref(mesh.endpoint("nowhere"), "witness").ask(Echo(), timeout=60.0)


async def test_a_node_that_comes_later_is_found(mesh: Mesh) -> None:
    near = await mesh.node("near")
    asking = asyncio.ensure_future(near.ref(mesh.endpoint("far"), "witness").ask(Echo(5), timeout=5.0))
    await asyncio.sleep(0)
    far = await mesh.node("far")
    await far.spawn(Witness(), "witness")
    assert await asking == Echo(5)


async def test_a_node_that_stops_ends_the_asks_of_others_at_once(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    asking = asyncio.ensure_future(near.ref(far.endpoint, "witness").ask(Hang(), timeout=60.0))
    await asyncio.wait_for(witness.until("started", 1), 5.0)
    await far.stop()
    with pytest.raises((NotRunning, PeerLost)):
        await asyncio.wait_for(asking, 2.0)


async def test_a_caller_that_stops_has_its_handlers_cancelled(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    witness = Witness()
    await far.spawn(witness, "witness")
    asking = asyncio.ensure_future(near.ref(far.endpoint, "witness").ask(Hang(), timeout=60.0))
    await asyncio.wait_for(witness.until("started", 1), 5.0)
    await near.stop()
    await asyncio.wait_for(witness.until("cancelled", 1), 5.0)
    with pytest.raises(PeerLost):
        await asking


async def test_a_stopped_node_refuses_politely(mesh: Mesh) -> None:
    near = await mesh.node("near")
    await near.stop()
    with pytest.raises(MeshError):
        await near.ref(mesh.endpoint("far"), "witness").ask(Echo(), timeout=1.0)
    await near.stop()


async def test_a_restart_is_a_new_epoch_and_ends_what_the_old_one_was_asked(mesh: Mesh) -> None:
    near = await mesh.node("near")
    old = await mesh.node("far")
    witness = Witness()
    await old.spawn(witness, "witness")
    ref = near.ref(old.endpoint, "witness")
    asking = asyncio.ensure_future(ref.ask(Hang(), timeout=60.0))
    await asyncio.wait_for(witness.until("started", 1), 5.0)
    await old.stop()
    new = await mesh.node("far")
    await new.spawn(Witness(), "witness")
    with pytest.raises((PeerLost, NotRunning)):
        await asyncio.wait_for(asking, 2.0)
    assert await ref.ask(Echo(9), timeout=5.0) == Echo(9)


async def test_the_members_of_a_mesh_cannot_stop_each_others_actors(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    ref = near.ref(far.endpoint, "witness")
    await ref.ask(Echo(), timeout=5.0)
    # What version 1 of the protocol took as an order to the node.
    near.peer(far.endpoint)._put(AskRecord(near.peer(far.endpoint)._new_id(), "witness", "mesh.stop", 1000, b""))
    assert await ref.ask(Echo(2), timeout=5.0) == Echo(2)
    assert far.actors == ["witness"] and far.metrics.refused == {"unknown_kind": 1}


async def test_a_restart_while_nothing_is_open_costs_no_call(mesh: Mesh) -> None:
    near = await mesh.node("near")
    for life in range(3):
        far = await mesh.node("far")
        await far.spawn(Witness(), "witness")
        assert await near.ref(far.endpoint, "witness").ask(Echo(life), timeout=5.0) == Echo(life)
        # As if killed: nothing is said.
        await far._transport.close(0)
        await until(lambda endpoint=far.endpoint: not near.peer(endpoint).reachable)
        await far.stop(timeout=0)


async def test_a_ghost_of_an_older_epoch_is_told_that_it_is_stale(mesh: Mesh) -> None:
    far = await mesh.node("far")
    await far.spawn(Witness(), "witness")
    ghost = await mesh.node("twin", epoch=100, bind=False)
    assert await ghost.ref(far.endpoint, "witness").ask(Echo(1), timeout=5.0) == Echo(1)
    successor = await mesh.node("twin", epoch=200, bind=False)
    assert await successor.ref(far.endpoint, "witness").ask(Echo(2), timeout=5.0) == Echo(2)
    with pytest.raises((Stale, PeerLost)):
        await ghost.ref(far.endpoint, "witness").ask(Echo(3), timeout=2.0)
    assert await successor.ref(far.endpoint, "witness").ask(Echo(4), timeout=5.0) == Echo(4)
    assert codec.kind_of(Echo) in far.metrics.received_kinds


async def test_a_node_that_is_told_of_a_newer_epoch_of_its_own_hears_which(mesh: Mesh) -> None:
    far = await mesh.node("far")
    await far.spawn(Witness(), "witness")
    for epoch in (100, 200):
        twin = await mesh.node("twin", epoch=epoch, bind=False)
        await twin.ref(far.endpoint, "witness").ask(Echo(), timeout=5.0)
    heard: list[int] = []
    ghost = await mesh.node("twin", epoch=150, bind=False)
    ghost.on_stale(heard.append)
    ref = ghost.ref(far.endpoint, "witness")
    with pytest.raises(Stale):
        await ref.ask(Echo(), timeout=5.0)
    assert heard == [200]
    ghost.take_epoch(201)
    assert await ref.ask(Echo(3), timeout=5.0) == Echo(3)


async def test_a_node_that_takes_a_new_epoch_ends_all_calls_and_goes_on(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    there, here = Witness(), Witness()
    await far.spawn(there, "witness")
    await near.spawn(here, "witness")
    made = near.ref(far.endpoint, "witness")
    taken = far.ref(near.endpoint, "witness")
    asking = [asyncio.ensure_future(ref.ask(Hang(), timeout=60.0)) for ref in (made, taken)]
    for witness in (there, here):
        await asyncio.wait_for(witness.until("started", 1), 5.0)
    with pytest.raises(ValueError, match="not above"):
        near.take_epoch(near.epoch)
    near.take_epoch(near.epoch + 7)
    for each in asking:
        with pytest.raises(PeerLost):
            await asyncio.wait_for(each, 5.0)
    for ref in (made, taken):
        assert await ref.ask(Echo(4), timeout=5.0) == Echo(4)
    assert there.calls[-1].epoch == near.epoch
    # The far handler of the old epoch is cancelled with its session.
    await asyncio.wait_for(there.until("cancelled", 1), 5.0)
    assert here.cancelled == 1


async def test_an_endpoint_nobody_uses_is_forgotten(mesh: Mesh) -> None:
    far, near = await mesh.node("far"), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    await near.ref(far.endpoint, "witness").ask(Echo(), timeout=5.0)
    await far.stop()
    peer = near.peer(far.endpoint)
    await until(lambda: not peer.reachable)
    peer.sweep(near.clock.now() + 3600)
    await until(lambda: not near._dialled)


async def test_a_dialler_that_is_gone_is_forgotten(mesh: Mesh) -> None:
    far, near = await mesh.node("far", timing=mesh.quick), await mesh.node("near")
    await far.spawn(Witness(), "witness")
    await near.ref(far.endpoint, "witness").ask(Echo(), timeout=5.0)
    assert len(far._accepted) == 1
    await near._transport.close(0)
    await until(lambda: not far._accepted)
    await near.stop(timeout=0)


async def test_a_handler_that_will_not_end_does_not_keep_a_node_from_stopping(
    mesh: Mesh, caplog: pytest.LogCaptureFixture
) -> None:
    class Deaf(Witness):
        async def hang(self, message: Hang, call: object) -> None:
            self.started += 1
            self.changed.set()
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await released.wait()

    released = asyncio.Event()
    far, near = await mesh.node("far"), await mesh.node("near")
    deaf = Deaf()
    await far.spawn(deaf, "deaf")
    asking = asyncio.ensure_future(near.ref(far.endpoint, "deaf").ask(Hang(), timeout=60.0))
    try:
        await asyncio.wait_for(deaf.until("started", 1), 5.0)
        await asyncio.wait_for(far.stop(timeout=0.1), 5.0)
        assert "deaf did not stop" in caplog.text
        with pytest.raises(MeshError):
            await asyncio.wait_for(asking, 5.0)
    finally:
        released.set()
