"""Bodies: only kinds of the table, only types with a bound, whatever the bytes are."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from mesh_doubles.messages import KINDS, Blob, Count, Echo, Note, codec

from mesh.codec import MAX_DEPTH, Codec, RawFrame
from mesh.errors import Malformed, MeshError, TooLarge, UnknownKind


class Tree(msgspec.Struct):
    children: list[Tree]


class Loose(msgspec.Struct):
    anything: Any


class Rich(msgspec.Struct, frozen=True, array_like=True):
    names: dict[str, list[int | None]]
    pair: tuple[int, str]
    inner: list[Echo]
    maybe: bytes | None = None


def test_a_message_comes_back_as_its_type() -> None:
    for message in (Echo(1, "é"), Count(3, fail=True), Note(-5)):
        kind, body, raw = codec.encode(message)
        assert not raw
        assert codec.decode(kind, body) == message


def test_nested_types_come_back() -> None:
    rich = Rich({"a": [1, None]}, (1, "x"), [Echo(2)], b"\x00")
    table = Codec({"rich": Rich})
    assert table.decode(*table.encode(rich)[:2]) == rich


def test_buffers_travel_beside_the_body() -> None:
    kind, body, raw = codec.encode(Blob("t", RawFrame(b"z" * 1000)))
    assert raw == [b"z" * 1000] and len(body) < 20
    assert codec.decode(kind, body, raw) == Blob("t", RawFrame(b"z" * 1000))


@pytest.mark.parametrize("index", [1, -1, 2**40, "0", True, None, 0.0])
def test_a_buffer_that_was_not_sent_is_malformed(index: object) -> None:
    with pytest.raises(Malformed):
        codec.decode("blob", msgspec.msgpack.encode(["t", index]), [b"only one"])


def test_a_kind_outside_the_table_is_unknown_both_ways() -> None:
    class Stranger(msgspec.Struct):
        pass

    with pytest.raises(UnknownKind):
        codec.encode(Stranger())
    with pytest.raises(UnknownKind):
        codec.decode("stranger", b"\x90")


def test_more_than_the_limit_is_refused_both_ways() -> None:
    small = Codec(KINDS, max_body=100)
    with pytest.raises(TooLarge):
        small.encode(Echo(0, "x" * 200))
    with pytest.raises(TooLarge):
        small.decode(*codec.encode(Echo(0, "x" * 200))[:2])
    assert small.encode(Echo(1))[0] == "echo", "a refused message leaves nothing behind"


def test_a_refused_message_leaves_no_frames_for_the_next() -> None:
    small = Codec(KINDS, max_body=10)
    with pytest.raises(TooLarge):
        small.encode(Blob("long label " * 5, RawFrame(b"leftover")))
    assert small.encode(Blob("b", RawFrame(b"mine")))[2] == [b"mine"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xc1", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
        b"\xc7\x01\x05a", b"\xd4\x05a", b"\x92\x01\xa2\xff\xfe", b"\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa0",
        b"\x92\x01\xa1x\x00", b"\x92\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00\xa1x",
    ],
)  # fmt: skip
def test_hostile_bodies_are_malformed_and_nothing_else(body: bytes) -> None:
    try:
        message = codec.decode("echo", body)
    except Malformed:
        return
    assert isinstance(message, Echo) and isinstance(message.number, int)


def test_mutated_bodies_never_raise_anything_but_malformed() -> None:
    rng = random.Random(3)
    table = Codec({**KINDS, "rich": Rich})
    honest = [table.encode(message) for message in (Echo(1, "abc"), Count(9), Rich({"a": [1]}, (1, "x"), [Echo(2)]))]
    for _ in range(20_000):
        kind, body, _raw = rng.choice(honest)
        bad = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            table.decode(kind, bytes(bad))
        except MeshError as error:
            assert isinstance(error, Malformed)


@pytest.mark.parametrize("struct", [Tree, Loose])
def test_a_type_without_a_bound_is_not_registered(struct: type[msgspec.Struct]) -> None:
    with pytest.raises(TypeError):
        Codec({"bad": struct})


def test_a_type_nested_too_deep_is_not_registered() -> None:
    kind: Any = int
    for _ in range(MAX_DEPTH + 1):
        kind = list[kind]
    deep = msgspec.defstruct("Deep", [("value", kind)])
    with pytest.raises(TypeError, match="deeper"):
        Codec({"deep": deep})


def test_a_type_has_one_kind() -> None:
    with pytest.raises(ValueError, match="two kinds"):
        Codec({"a": Echo, "b": Echo})
