"""The directory over a network in memory, with a clock moved by hand; nodes come, fall silent and wake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from mesh_doubles.clock import FakeClock
from mesh_doubles.memory import MemoryNetwork
from msgspec.structs import replace

from mesh.codec import Codec
from mesh.directory import DIRECTORY, DIRECTORY_KINDS, DirectoryActor, DirectoryClient, Member
from mesh.errors import NoPeer
from mesh.node import Node

HERE = "mem://directory"


class Body:
    """A process as the directory sees it: a node, a client, and what it says of itself."""

    def __init__(self, node: Node, client: DirectoryClient, role: str) -> None:
        self.node = node
        self.client = client
        self.member = Member(role, node.name, node.endpoint, node.epoch)
        self.changes = 0
        self.fences: list[tuple[int, bool]] = []
        client.on_change(self._count_change)
        client.on_fenced(lambda fence, replaced: self.fences.append((fence, replaced)))

    def _count_change(self) -> None:
        self.changes += 1

    def turn(self, state: str, load: int = 0) -> None:
        self.member = replace(self.member, state=state, load=load)
        self.client.announce_now()

    async def fall_asleep(self) -> None:
        """What SIGSTOP does: not a word any more, and no good-bye."""
        polling, self.client._polling = self.client._polling, None
        assert polling is not None
        polling.cancel()
        await asyncio.wait([polling])

    async def wake(self) -> None:
        await self.client.start()

    def sees(self, role: str) -> dict[str, str]:
        return {member.instance: member.state for member in self.client.members(role)}


class Town:
    """A network, a clock, a directory, and whoever joins."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.network = MemoryNetwork(clock=self.clock)
        self.directory: Node | None = None
        self.actor: DirectoryActor | None = None
        self.bodies: list[Body] = []

    def node(self, name: str) -> Node:
        return Node(self.network.transport(), Codec(DIRECTORY_KINDS), name=name, clock=self.clock)

    async def open(self) -> None:
        self.directory = self.node("directory")
        await self.directory.start(HERE)
        self.actor = DirectoryActor(clock=self.clock)
        await self.directory.spawn(self.actor, DIRECTORY)

    async def shut(self) -> None:
        assert self.directory is not None
        await self.stop(self.directory)
        self.directory = None

    async def stop(self, node: Node) -> None:
        # Leaving waits for farewells, so time has to pass meanwhile.
        stopping = asyncio.ensure_future(node.stop(1.0))
        while not stopping.done():
            await self.clock.advance(0.1)

    async def join(self, role: str, instance: str, epoch: int | None = None) -> Body:
        node = self.node(instance)
        if epoch is not None:
            node.epoch = epoch
        await node.start(f"mem://{instance}")
        body = Body(
            node, DirectoryClient(node, HERE, lambda: self.words_of(node), interval=0.5, clock=self.clock), role
        )
        self.bodies.append(body)
        await body.client.start()
        await self.clock.settle()
        return body

    def words_of(self, node: Node) -> Member:
        return next(body.member for body in self.bodies if body.node is node)

    async def close(self) -> None:
        for body in self.bodies:
            leaving = asyncio.ensure_future(body.client.stop())
            while not leaving.done():
                await self.clock.advance(0.1)
            await self.stop(body.node)
        if self.directory is not None:
            await self.stop(self.directory)


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    town = Town()
    await town.open()
    yield town
    await town.close()


async def test_those_who_join_see_each_other_without_waiting_for_a_round(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    target = await town.join("worker", "worker-1")
    await town.clock.advance(0.05)
    assert streamer.sees("worker") == {"worker-1": "starting"}
    assert target.sees("streamer") == {"streamer-1": "starting"}


async def test_a_member_that_turns_ready_is_known_in_much_less_than_a_round(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    target = await town.join("worker", "worker-1")
    await town.clock.advance(3.1)
    assert streamer.client.pick("worker") is None
    target.turn("ready")
    await town.clock.advance(0.05)
    picked = streamer.client.pick("worker")
    assert picked is not None and picked.endpoint == "mem://worker-1"
    assert streamer.client.ref("worker").endpoint == "mem://worker-1"


async def test_without_a_ready_member_there_is_no_peer(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    with pytest.raises(NoPeer, match="worker"):
        streamer.client.ref("worker")


async def test_a_member_announces_about_twice_a_second(town: Town) -> None:
    await town.join("worker", "worker-1")
    await town.clock.advance(2.0)
    before = town.network.carried
    await town.clock.advance(10.0)
    # An ask and its answer each time, and what the session itself says now and then.
    assert 40 <= town.network.carried - before <= 80


async def test_load_spreads_between_the_rounds_and_draining_members_get_nothing(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    bodies = [await town.join("worker", f"worker-{number}") for number in range(3)]
    bodies[0].turn("ready", load=2)
    bodies[1].turn("ready", load=0)
    bodies[2].turn("draining")
    await town.clock.advance(1.0)
    picks = [streamer.client.pick("worker") for _ in range(6)]
    names = [picked.instance for picked in picks if picked is not None]
    assert sorted(names) == ["worker-0"] * 2 + ["worker-1"] * 4


async def test_a_key_finds_the_same_member_from_everywhere(town: Town) -> None:
    first = await town.join("streamer", "streamer-1")
    second = await town.join("streamer", "streamer-2")
    for number in range(4):
        (await town.join("worker", f"worker-{number}")).turn("ready")
    await town.clock.advance(1.0)
    for key in map(str, range(50)):
        assert first.client.pick("worker", key) == second.client.pick("worker", key)


async def test_a_silent_member_is_lost_to_all_and_fenced_when_it_wakes(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    target = await town.join("worker", "worker-1")
    target.turn("ready")
    await town.clock.advance(1.0)
    await target.fall_asleep()
    await town.clock.advance(1.4)
    assert streamer.sees("worker") == {"worker-1": "ready"}
    await town.clock.advance(1.1)
    assert streamer.sees("worker") == {}
    assert [member.state for member in streamer.client.lost("worker")] == ["lost"]
    await target.wake()
    await town.clock.advance(2.0)
    assert target.fences == [(target.node.epoch, False)]
    assert streamer.sees("worker") == {}


async def test_one_that_left_is_gone_at_once(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    target = await town.join("worker", "worker-1")
    target.turn("ready")
    await town.clock.advance(1.0)
    leaving = asyncio.ensure_future(target.client.stop())
    await town.clock.advance(0.05)
    assert leaving.done()
    assert streamer.sees("worker") == {}


async def test_a_restarted_member_is_lost_and_new_at_once(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    old = await town.join("worker", "worker-1")
    old.turn("ready")
    await town.clock.advance(1.0)
    await old.fall_asleep()
    await town.stop(old.node)
    successor = await town.join("worker", "worker-1")
    successor.turn("ready")
    await town.clock.advance(0.1)
    picked = streamer.client.pick("worker")
    assert picked is not None and picked.epoch == successor.node.epoch > old.node.epoch


async def test_one_that_was_replaced_is_told_so(town: Town) -> None:
    old = await town.join("worker", "worker-1")
    old.turn("ready")
    await town.clock.advance(1.0)
    newer = replace(old.member, epoch=old.node.epoch + 5)
    assert town.actor is not None
    town.actor._membership.announce(newer, town.clock.now())
    await town.clock.advance(1.0)
    assert old.fences == [(newer.epoch, True)]


async def test_a_fenced_member_that_takes_the_epoch_it_is_told_is_back(town: Town) -> None:
    """Also where its clock has stepped back, and its own idea of an epoch is an older one."""
    streamer = await town.join("streamer", "streamer-1")
    target = await town.join("worker", "worker-1")
    target.turn("ready")
    await town.clock.advance(1.0)
    assert town.actor is not None
    town.actor.bury("worker-1", target.member.pid)
    await town.clock.advance(1.0)
    ((fence, replaced),) = target.fences
    assert not replaced and streamer.sees("worker") == {}
    target.node.take_epoch(fence + 1)
    target.member = replace(target.member, epoch=target.node.epoch)
    await town.clock.advance(1.0)
    assert streamer.sees("worker") == {"worker-1": "ready"}
    assert len(target.fences) == 1


async def test_a_member_of_another_host_that_has_the_pid_of_one_that_ended_stays(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    ours = await town.join("worker", "worker-1")
    far = await town.join("worker", "worker-far")
    for body in (ours, far):
        body.member = replace(body.member, pid=7)
        body.turn("ready")
    await town.clock.advance(1.0)
    assert town.actor is not None
    town.actor.bury("worker-1", 7)
    await town.clock.advance(0.1)
    assert streamer.sees("worker") == {"worker-far": "ready"}
    town.actor.bury("worker-far", 8)
    await town.clock.advance(1.0)
    assert streamer.sees("worker") == {"worker-far": "ready"} and far.fences == []


async def test_the_last_table_serves_while_there_is_no_directory_and_it_refills(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    target = await town.join("worker", "worker-1")
    target.turn("ready")
    await town.clock.advance(1.0)
    await town.shut()
    await town.clock.advance(20.0)
    assert not streamer.client.connected
    assert streamer.client.pick("worker") is not None

    seen_without: list[float] = []
    streamer.client.on_change(
        lambda: seen_without.append(town.clock.now()) if not streamer.client.ready("worker") else None
    )
    await town.open()
    await town.clock.advance(5.0)
    assert town.actor is not None
    assert {member.instance for member in town.actor.members()} == {"streamer-1", "worker-1"}
    assert streamer.client.connected and streamer.client.pick("worker") is not None
    assert seen_without == [] and target.fences == []


async def test_one_that_died_while_there_was_no_directory_is_forgotten_once_that_has_settled(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    target = await town.join("worker", "worker-1")
    target.turn("ready")
    await town.clock.advance(1.0)
    await town.shut()
    await target.fall_asleep()
    await town.open()
    await town.clock.advance(1.0)
    assert streamer.client.pick("worker") is not None
    await town.clock.advance(5.0)
    assert streamer.client.pick("worker") is None


async def test_an_observer_that_fails_doesnt_silence_the_heartbeat(town: Town) -> None:
    streamer = await town.join("streamer", "streamer-1")
    streamer.client.on_change(lambda: 1 / 0)
    target = await town.join("worker", "worker-1")
    await town.clock.advance(5.0)
    assert target.sees("streamer") == {"streamer-1": "starting"}


async def test_one_may_look_without_being_a_member(town: Town) -> None:
    await town.join("worker", "worker-1")
    node = town.node("doctor")
    await node.start()
    client = DirectoryClient(node, HERE, clock=town.clock)
    await client.start()
    await town.clock.advance(0.1)
    assert [member.instance for member in client.members()] == ["worker-1"]
    assert town.actor is not None and len(town.actor.members()) == 1
    await client.stop()
    await town.stop(node)


async def test_a_directory_that_starts_anew_somewhere_else_is_found_when_the_old_one_is_silent(town: Town) -> None:
    elsewhere, places = "mem://moved", [HERE]
    node = town.node("worker-1")
    await node.start("mem://worker-1")
    client = DirectoryClient(node, lambda: places[0], lambda: member(node), interval=0.5, clock=town.clock)
    await client.start()
    await town.clock.advance(0.1)
    assert client.connected
    await town.shut()
    await town.clock.advance(2.0)
    assert not client.connected
    other = town.node("directory")
    await other.start(elsewhere)
    await other.spawn(DirectoryActor(clock=town.clock), DIRECTORY)
    await town.clock.advance(2.0)
    # Nobody has said where it is yet.
    assert not client.connected
    places[0] = elsewhere
    await town.clock.advance(2.0)
    assert client.connected and [each.instance for each in client.members()] == ["worker-1"]
    await client.stop()
    await town.stop(node)
    await town.stop(other)


async def test_a_place_that_cannot_be_read_leaves_the_last_one(town: Town) -> None:
    answers: list[str | OSError] = [HERE]

    def place() -> str:
        if isinstance(answers[0], OSError):
            raise answers[0]
        return answers[0]

    node = town.node("doctor")
    await node.start()
    client = DirectoryClient(node, place, clock=town.clock)
    await client.start()
    answers[0] = FileNotFoundError("gone")
    await town.shut()
    await town.clock.advance(3.0)
    assert not client.connected
    await town.open()
    await town.clock.advance(3.0)
    assert client.connected
    await client.stop()
    await town.stop(node)


def member(node: Node) -> Member:
    return Member("worker", node.name, node.endpoint, node.epoch, "ready")
