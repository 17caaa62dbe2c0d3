"""The outbox bundles what one tick says, keeps what the transport does not take, and is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mesh.envelope import (
    BUNDLE_BYTES,
    BUNDLE_RECORDS,
    AcceptorBundle,
    AskRecord,
    Credit,
    MeshRecord,
    decode_for_acceptor,
)
from mesh.outbox import Outbox
from mesh.transport import Frame, Sent


class Wire:
    """Takes bundles, or not."""

    def __init__(self) -> None:
        self.bundles: list[AcceptorBundle] = []
        self.answer = Sent.SENT
        self.control: list[MeshRecord] = []
        self.gone = 0

    def send(self, frames: Sequence[Frame]) -> Sent:
        if self.answer is Sent.SENT:
            self.bundles.append(decode_for_acceptor([bytes(frame) for frame in frames]))
        return self.answer

    def control_records(self) -> list[MeshRecord]:
        said, self.control = self.control, []
        return said

    def went(self) -> None:
        self.gone += 1

    def outbox(self, records: int = 1000, bytes: int = 1 << 20) -> Outbox:
        return Outbox(1, self.send, self.control_records, self.went, records, bytes)

    def asked(self) -> list[bytes]:
        return [r.body for bundle in self.bundles for r in bundle.records if isinstance(r, AskRecord)]


def ask(body: bytes = b"x") -> AskRecord:
    return AskRecord(1, "a", "k", 100, body)


async def test_what_is_said_in_one_tick_leaves_as_one_bundle() -> None:
    wire = Wire()
    outbox = wire.outbox()
    for number in range(10):
        assert outbox.put(ask(b"%d" % number), 1)
    assert wire.bundles == []
    await asyncio.sleep(0)
    assert len(wire.bundles) == 1 and len(wire.asked()) == 10 and outbox.bytes == 0


async def test_control_records_go_in_front() -> None:
    wire = Wire()
    outbox = wire.outbox()
    outbox.put(ask(), 1)
    wire.control = [Credit([])]
    await asyncio.sleep(0)
    assert [type(record) for record in wire.bundles[0].records] == [Credit, AskRecord]


async def test_control_alone_makes_a_bundle_and_silence_none() -> None:
    wire = Wire()
    outbox = wire.outbox()
    outbox.schedule()
    await asyncio.sleep(0)
    assert wire.bundles == []
    wire.control = [Credit([])]
    outbox.schedule()
    await asyncio.sleep(0)
    assert len(wire.bundles) == 1


async def test_much_is_split_into_bundles_in_order() -> None:
    wire = Wire()
    outbox = wire.outbox(records=10_000)
    for number in range(BUNDLE_RECORDS * 2 + 5):
        outbox.put(ask(b"%d" % number), 1)
    await asyncio.sleep(0)
    assert len(wire.bundles) == 3
    assert wire.asked() == [b"%d" % number for number in range(BUNDLE_RECORDS * 2 + 5)]


async def test_large_records_are_split_by_bytes_and_the_largest_goes_alone() -> None:
    wire = Wire()
    outbox = wire.outbox(bytes=1 << 24)
    for size in (BUNDLE_BYTES // 2, BUNDLE_BYTES // 2, BUNDLE_BYTES // 2, BUNDLE_BYTES * 3, 10):
        outbox.put(ask(bytes(size)), size)
    await asyncio.sleep(0)
    assert [len(bundle.records) for bundle in wire.bundles] == [2, 1, 1, 1]
    assert outbox.bytes == 0


async def test_a_full_outbox_takes_nothing() -> None:
    wire = Wire()
    wire.answer = Sent.FULL
    outbox = wire.outbox(records=3)
    assert [outbox.put(ask(), 1) for _ in range(5)] == [True, True, True, False, False]
    assert not outbox.has_room


async def test_a_heavy_outbox_takes_nothing() -> None:
    wire = Wire()
    outbox = wire.outbox(bytes=100)
    assert outbox.put(ask(), 99) and outbox.put(ask(), 50)
    assert not outbox.put(ask(), 1), "it is above its bytes"


async def test_the_end_of_a_call_may_use_twice_the_room() -> None:
    wire = Wire()
    wire.answer = Sent.FULL
    outbox = wire.outbox(records=3)
    assert [outbox.put(ask(), 1) for _ in range(4)] == [True, True, True, False]
    assert [outbox.put(ask(), 1, reserve=2) for _ in range(4)] == [True, True, True, False]


async def test_what_was_full_leaves_later_in_order_and_wakes_who_waits() -> None:
    wire = Wire()
    wire.answer = Sent.FULL
    outbox = wire.outbox()
    outbox.put(ask(b"1"), 1)
    await asyncio.sleep(0)
    outbox.put(ask(b"2"), 1)
    waiter = asyncio.get_running_loop().create_future()
    outbox.room_waiters.append(waiter)
    await asyncio.sleep(0)
    assert wire.asked() == [] and not waiter.done() and len(outbox) == 2
    wire.answer = Sent.SENT
    outbox.flush()
    assert wire.asked() == [b"1", b"2"] and waiter.done() and len(outbox) == 0


async def test_an_unreachable_peer_is_reported_and_what_was_said_kept() -> None:
    wire = Wire()
    wire.answer = Sent.GONE
    outbox = wire.outbox()
    outbox.put(ask(), 1)
    await asyncio.sleep(0)
    assert wire.gone == 1 and len(outbox) == 1
    wire.answer = Sent.SENT
    outbox.flush()
    assert len(wire.asked()) == 1


async def test_a_closed_outbox_says_and_takes_nothing() -> None:
    wire = Wire()
    outbox = wire.outbox()
    outbox.put(ask(), 1)
    outbox.close()
    assert not outbox.put(ask(), 1)
    outbox.schedule()
    await asyncio.sleep(0)
    assert wire.bundles == []
