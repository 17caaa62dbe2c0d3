"""The network in memory: what it loses, repeats and delays is decided by its seed."""

from __future__ import annotations

from collections.abc import Sequence

from mesh_doubles.clock import FakeClock
from mesh_doubles.memory import MemoryNetwork

from mesh.transport import Sent


class Ear:
    """Both a door and the owner of a line: writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.news: list[str] = []
        self.callers: list[bytes] = []

    def received(self, *arguments: object) -> None:
        frames = arguments[-1]
        assert isinstance(frames, list)
        if len(arguments) == 2:
            assert isinstance(arguments[0], bytes)
            self.callers.append(arguments[0])
        self.heard.append(frames[0])

    def refused(self, reason: str) -> None:
        self.news.append(reason)

    def writable(self) -> None:
        self.news.append("writable")

    def connected(self) -> None:
        self.news.append("connected")

    def disconnected(self, why: str = "") -> None:
        self.news.append("disconnected")


async def carried(seed: int, **faults: float) -> list[bytes]:
    clock = FakeClock()
    network = MemoryNetwork(seed, clock=clock, **faults)
    door, owner = Ear(), Ear()
    await network.transport().bind("mem://door", door)
    line = network.transport().dial("mem://door", b"me", owner)
    await clock.settle()
    for number in range(200):
        assert line.send([b"%d" % number]) is Sent.SENT
    await clock.advance(10.0)
    return door.heard


async def test_without_faults_everything_arrives_in_order() -> None:
    assert await carried(1) == [b"%d" % number for number in range(200)]


async def test_the_same_seed_has_the_same_faults() -> None:
    faults = {"drop": 0.2, "duplicate": 0.2, "reorder": 0.5, "delay": 0.01}
    assert await carried(3, **faults) == await carried(3, **faults)
    assert await carried(3, **faults) != await carried(4, **faults)


async def test_each_fault_is_what_its_name_says() -> None:
    everything = [b"%d" % number for number in range(200)]
    dropped = await carried(1, drop=0.3)
    assert 0 < len(dropped) < 200 and dropped == [x for x in everything if x in set(dropped)]
    doubled = await carried(1, duplicate=0.3)
    assert len(doubled) > 200 and set(doubled) == set(everything)
    mixed = await carried(1, reorder=0.3)
    assert mixed != everything and sorted(mixed) == sorted(everything)
    damaged = await carried(1, damage=0.3)
    assert len(damaged) == 200 and 20 < sum(now != then for now, then in zip(damaged, everything, strict=True)) < 100


async def test_a_line_hears_of_its_door_opening_and_closing() -> None:
    clock = FakeClock()
    network = MemoryNetwork(clock=clock)
    owner, door = Ear(), Ear()
    line = network.transport().dial("mem://door", b"me", owner)
    await clock.settle()
    assert owner.news == [] and line.send([b"x"]) is Sent.FULL
    transport = network.transport()
    await transport.bind("mem://door", door)
    assert owner.news == ["connected"] and line.send([b"x"]) is Sent.SENT
    await clock.settle()
    assert transport.reply(door.callers[0], [b"y"]) is Sent.SENT
    assert transport.reply(b"nobody", [b"y"]) is Sent.GONE
    await clock.settle()
    assert owner.heard == [b"y"]
    await transport.close(0)
    assert owner.news == ["connected", "disconnected"]


async def test_while_it_is_held_it_is_full_and_says_when_not() -> None:
    clock = FakeClock()
    network = MemoryNetwork(clock=clock)
    owner, door = Ear(), Ear()
    await network.transport().bind("mem://door", door)
    line = network.transport().dial("mem://door", b"me", owner)
    await clock.settle()
    network.hold("mem://door")
    assert line.send([b"x"]) is Sent.FULL
    network.release("mem://door")
    assert owner.news[-1] == "writable" and door.news[-1] == "writable"


async def test_a_closed_line_is_noticed_by_the_door_and_hears_nothing_more() -> None:
    clock = FakeClock()
    network = MemoryNetwork(clock=clock)
    owner, door = Ear(), Ear()
    transport = network.transport()
    await transport.bind("mem://door", door)
    line = network.transport().dial("mem://door", b"me", owner)
    await clock.settle()
    line.close()
    line.close()
    await clock.settle()
    assert door.news == ["disconnected"]
    assert transport.reply(b"me", [b"y"]) is Sent.GONE
    frames: Sequence[bytes] = [b"z"]
    line.arrive(list(frames))
    assert owner.heard == []
