from __future__ import annotations

import random

import pytest

from loadtest.http1 import MAX_EVENT, MAX_HEAD, BadResponse, EventReader, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*bodies: bytes) -> bytes:
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies) + b"0\r\n\r\n"


def read_in_pieces(data: bytes, cuts: list[int]) -> tuple[bytes, ResponseReader]:
    reader = ResponseReader()
    body = b""
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        body += reader.feed(data[begin:end])
    return body, reader


def test_a_chunked_body_is_the_same_however_the_bytes_were_cut() -> None:
    bodies = [b"hello ", b"\r\n", b"x" * 300, b"0\r\n\r\n", b"end"]
    data = chunked(*bodies)
    draw = random.Random(1)
    every_byte = list(range(1, len(data)))
    for cuts in [[], every_byte, *(sorted(draw.sample(every_byte, 5)) for _ in range(300))]:
        body, reader = read_in_pieces(data, cuts)
        assert body == b"".join(bodies)
        assert reader.complete and reader.keep_alive and reader.status == 200


def test_a_body_of_known_length_ends_with_it() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 429 Too Many\r\nContent-Length: 5\r\nConnection: close\r\n\r\nab") == b"ab"
    assert not reader.complete
    assert reader.feed(b"cde") == b"cde"
    assert reader.complete and not reader.keep_alive and reader.status == 429


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\nabc") == b"abc"
    assert not reader.complete
    assert reader.feed_eof() and not reader.keep_alive


def test_a_chunked_body_cut_by_the_connection_is_not_whole() -> None:
    reader = ResponseReader()
    reader.feed(HEAD + b"5\r\nabc")
    assert not reader.feed_eof()


def test_an_interim_answer_is_skipped() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx") == b"x"
    assert reader.status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        HEAD + b"zz\r\nab\r\n",
        HEAD + b"-2\r\nab\r\n",
        HEAD + b"2\r\nabXX",
        HEAD + b"0\r\n\r\nleft over",
        b"x" * (MAX_HEAD + 1),
        HEAD + b"1" * 2000,
    ],
)
def test_what_breaks_the_grammar_or_a_limit_is_refused(data: bytes) -> None:
    with pytest.raises(BadResponse):
        ResponseReader().feed(data)


def test_events_are_the_same_however_the_bytes_were_cut() -> None:
    body = b'data: {"a":1}\n\n: ping\n\ndata: one\ndata: two\n\nevent: x\r\ndata:tight\r\n\r\ndata: [DONE]\n\n'
    wanted = [b'{"a":1}', b"one\ntwo", b"tight", b"[DONE]"]
    draw = random.Random(2)
    every_byte = list(range(1, len(body)))
    for cuts in [[], every_byte, *(sorted(draw.sample(every_byte, 4)) for _ in range(300))]:
        reader = EventReader()
        seen: list[bytes] = []
        for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            seen += reader.feed(body[begin:end])
        assert seen == wanted


def test_a_line_that_is_no_field_is_refused() -> None:
    with pytest.raises(BadResponse):
        EventReader().feed(b"<html>oops</html>\n\n")


def test_an_endless_event_is_refused() -> None:
    reader = EventReader()
    with pytest.raises(BadResponse):
        for _ in range(MAX_EVENT // 65536 + 2):
            reader.feed(b"x" * 65536)
