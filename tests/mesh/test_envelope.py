"""Records and bundles as bytes: what comes in is checked by direction, version and count."""

from __future__ import annotations

import contextlib
import random

import msgspec
import pytest

from mesh.envelope import (
    MAX_RECORDS,
    VERSION,
    AskRecord,
    Cancel,
    Credit,
    End,
    Failure,
    Farewell,
    Hello,
    Item,
    MeshRecord,
    Open,
    Reply,
    Welcome,
    decode_for_acceptor,
    decode_for_dialler,
    encode_bundle,
    raw_frames,
)
from mesh.errors import Malformed

TO_ACCEPTOR: list[MeshRecord] = [
    Hello("n", 5), AskRecord(1, "a", "k", 100, b"b"), Open(2, "a", "k", 100, 64, b"b"),
    Credit([1, 2]), Cancel([1]), Farewell(),
]  # fmt: skip
TO_DIALLER: list[MeshRecord] = [
    Welcome("n", 5, 1), Reply(1, "k", b"b"), Failure(1, "busy", "full"), Item(2, 1, "k", b"b"),
    End(2, 2), Farewell("stale", 9),
]  # fmt: skip


def as_bytes(frames: list) -> list[bytes]:  # type: ignore[type-arg]
    return [bytes(frame) for frame in frames]


def test_every_record_travels_in_its_direction() -> None:
    there = decode_for_acceptor(as_bytes(encode_bundle(7, 8, TO_ACCEPTOR)))
    back = decode_for_dialler(as_bytes(encode_bundle(8, 7, TO_DIALLER)))
    assert (there.epoch, there.to_epoch, there.records) == (7, 8, TO_ACCEPTOR)
    assert (back.epoch, back.to_epoch, back.records) == (8, 7, TO_DIALLER)


@pytest.mark.parametrize("record", TO_DIALLER[:-1])
def test_an_acceptor_does_not_take_what_only_acceptors_say(record: MeshRecord) -> None:
    with pytest.raises(Malformed):
        decode_for_acceptor(as_bytes(encode_bundle(1, 0, [record])))


@pytest.mark.parametrize("record", TO_ACCEPTOR[:-1])
def test_a_dialler_does_not_take_what_only_diallers_say(record: MeshRecord) -> None:
    with pytest.raises(Malformed):
        decode_for_dialler(as_bytes(encode_bundle(1, 0, [record])))


def test_raw_frames_follow_in_the_order_of_their_records() -> None:
    one, two = Item(1, 1, "k", b"", frames=2), Item(1, 2, "k", b"", frames=1)
    frames = as_bytes(encode_bundle(1, 0, [one, Item(3, 1, "k", b"x"), two], [b"a", b"b", b"c"]))
    bundle = decode_for_dialler(frames)
    assert raw_frames(bundle.records, frames) == {0: [b"a", b"b"], 2: [b"c"]}


@pytest.mark.parametrize("extra", [-1, 1])
def test_raw_frames_must_add_up(extra: int) -> None:
    frames = as_bytes(encode_bundle(1, 0, [Item(1, 1, "k", b"", frames=2)], [b"a", b"b"]))
    frames = frames[:-1] if extra < 0 else [*frames, b"left over"]
    with pytest.raises(Malformed):
        raw_frames(decode_for_dialler(frames).records, frames)


def test_another_version_is_refused() -> None:
    with pytest.raises(Malformed, match="version"):
        decode_for_acceptor([msgspec.msgpack.encode([VERSION + 1, 1, 0, []])])


def test_a_newer_peer_may_append_fields() -> None:
    longer = msgspec.msgpack.encode([VERSION, 1, 0, [[1, "n", 5, "new field"]], "another"])
    assert decode_for_acceptor([longer]).records == [Hello("n", 5)]


def test_more_records_than_a_bundle_may_hold_are_refused() -> None:
    with pytest.raises(Malformed, match="records"):
        decode_for_acceptor(as_bytes(encode_bundle(1, 0, [Farewell()] * (MAX_RECORDS + 1))))


def test_whatever_the_bytes_are_they_are_malformed_or_a_bundle() -> None:
    rng = random.Random(5)
    honest = [bytes(encode_bundle(7, 8, records)[0]) for records in (TO_ACCEPTOR, TO_DIALLER)]
    for _ in range(20_000):
        bad = bytearray(rng.choice(honest))
        for _ in range(rng.randrange(1, 5)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        for decode in (decode_for_acceptor, decode_for_dialler):
            with contextlib.suppress(Malformed):
                decode([bytes(bad)])
    for decode in (decode_for_acceptor, decode_for_dialler):
        with pytest.raises(Malformed):
            decode([])
