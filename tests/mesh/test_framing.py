"""Messages on a byte stream: cut anywhere they come out as they were, and what is none costs no memory."""

from __future__ import annotations

import array
import random
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import Malformed
from mesh.framing import PIECE, Reassembly, framed
from mesh.transport import Limits

LIMITS = Limits(frame_bytes=4096, frames=8)
MESSAGES = st.lists(st.lists(st.binary(max_size=200), max_size=9), max_size=20)


def fed(pieces: Iterable[bytes], limits: Limits = LIMITS) -> list[list[bytes]]:
    reassembly = Reassembly(limits)
    return [message for piece in pieces for message in reassembly.feed(piece)]


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    """In order, empty pieces among them."""
    ends = sorted(place % (len(stream) + 1) for place in places)
    return [stream[start:end] for start, end in zip([0, *ends], [*ends, len(stream)], strict=True)]


@given(MESSAGES, st.lists(st.integers(min_value=0), max_size=40))
def test_cut_anywhere_they_come_out_as_they_were(messages: list[list[bytes]], places: list[int]) -> None:
    stream = b"".join(framed(message) for message in messages)
    assert fed(cut(stream, places)) == messages
    assert fed([stream]) == messages


@given(MESSAGES)
def test_byte_by_byte_each_comes_with_its_last_byte(messages: list[list[bytes]]) -> None:
    reassembly = Reassembly(LIMITS)
    for message in messages:
        *first, last = framed(message)
        assert [reassembly.feed(bytes([byte])) for byte in first] == [[]] * len(first)
        assert reassembly.feed(bytes([last])) == [message]


def test_frames_may_be_any_bytes_like_thing() -> None:
    """A view of wider numbers has fewer items than bytes."""
    numbers = array.array("d", [1.0, 2.0, 3.0])
    frames = [bytearray(b"one"), memoryview(b"two"), memoryview(numbers), b""]
    assert fed([framed(frames)]) == [[b"one", b"two", numbers.tobytes(), b""]]


@pytest.mark.parametrize("number", range(5))
def test_however_many_frames_there_are_the_bytes_are_as_the_format_says(number: int) -> None:
    frames = [b"x" * (3 * place) for place in range(number)]
    plain = struct.pack(f"<HH{number}I", number, 8, *map(len, frames)) + b"".join(frames)
    assert framed(frames, 7) == plain
    assert framed([bytearray(frame) for frame in frames], 7) == plain
    assert framed([memoryview(frame) if place % 2 else frame for place, frame in enumerate(frames)], 7) == plain


def test_a_message_in_one_piece_may_be_as_long_as_one_that_comes_in_several() -> None:
    longest = [b"x" * (LIMITS.frame_bytes - 8)]
    assert fed([framed(longest)]) == [longest]
    for stream in (framed([longest[0] + b"x"]), framed([b"fine"]) + framed([longest[0] + b"x"])):
        with pytest.raises(Malformed):
            fed([stream])
        with pytest.raises(Malformed):
            fed([stream[:-1], stream[-1:]])


def test_a_message_in_one_piece_and_a_bit_of_the_next_leave_the_bit() -> None:
    stream = framed([b"first"], 3) + framed([b""], 4) + framed([b"second"], 5)
    for end in range(len(framed([b"first"])), len(stream)):
        reassembly = Reassembly(LIMITS)
        assert reassembly.feed(stream[:end])[0] == [b"first"]
        assert reassembly.feed(stream[end:])[-1] == [b"second"]
        assert reassembly.processor == 5 and not reassembly._held
        assert reassembly.feed(framed([b"third"], 6)) == [[b"third"]] and reassembly.processor == 6


def test_each_message_tells_the_processor_of_its_sender() -> None:
    reassembly = Reassembly(LIMITS)
    assert reassembly.processor == -1
    for processor in (0, 3, -1, 65534):
        stream = framed([b"x"], processor)
        assert reassembly.feed(stream[:-1]) == []
        reassembly.feed(stream[-1:])
        assert reassembly.processor == processor
    reassembly.feed(framed([b"x"], 5) + framed([b"x"], 6) + framed([b"x"], 7)[:-1])
    assert reassembly.processor == 6, "of the last one that is whole"


def header(*lengths: int, count: int | None = None) -> bytes:
    return struct.pack(f"<HH{len(lengths)}I", len(lengths) if count is None else count, 0, *lengths)


@pytest.mark.parametrize(
    "announced",
    [
        header(count=10),
        header(count=65535),
        header(4096 - 7),
        header(2**32 - 1),
        header(*[2**32 - 1] * 9),
        header(*[500] * 9),
    ],
    ids=["a frame too many", "many frames", "a byte too many", "a giant frame", "giant frames", "too long together"],
)
@pytest.mark.parametrize("bytewise", [True, False])
def test_what_is_too_much_is_refused_when_it_is_announced(announced: bytes, bytewise: bool) -> None:
    before = framed([b"fine"])
    pieces = [bytes([byte]) for byte in before + announced] if bytewise else [before + announced]
    with pytest.raises(Malformed):
        fed(pieces)


def test_what_is_just_allowed_is_taken() -> None:
    """Nine frames of 4096 bytes with all that is said about them."""
    message = [b"x" * 400] * 8 + [b"y" * (4096 - 4 - 9 * 4 - 8 * 400)]
    stream = framed(message)
    assert len(stream) == LIMITS.frame_bytes
    assert fed(cut(stream, range(0, 4096, 100))) == [message]


@pytest.mark.parametrize("seed", range(50))
def test_garbage_is_refused_or_waited_for_and_costs_no_more_than_a_message_and_a_piece(seed: int) -> None:
    rng = random.Random(seed)
    reassembly = Reassembly(LIMITS)
    most = rng.choice([1, 7, 100, 3000])
    for _ in range(2000):
        # Small numbers make headers that are believed for a while.
        piece = bytes(rng.choices([0, 1, 2, 255], [6, 2, 1, 0.01], k=rng.randrange(1, most + 1)))
        try:
            reassembly.feed(piece)
        except Malformed:
            return
        assert len(reassembly._held) < LIMITS.frame_bytes
    assert reassembly.feed(b"") == []


def test_of_a_long_message_no_more_is_held_than_it_and_a_piece() -> None:
    limits = Limits()
    whole = framed([bytes(limits.frame_bytes - 8)])
    reassembly, most = Reassembly(limits), 0
    for at in range(0, len(whole), PIECE):
        found = reassembly.feed(whole[at : at + PIECE])
        most = max(most, len(reassembly._held))
    assert [len(frame) for frame in found[0]] == [limits.frame_bytes - 8]
    assert most <= limits.frame_bytes
    assert len(reassembly._held) == 0, "nothing is kept of what was given out"
