"""A plain reader whose times are the kernel's: read late or at once, a gap is that between the writes."""

from __future__ import annotations

import select
import socket
import sys
import time

import pytest

from bench.kernel_times import SO_TIMESTAMPNS, Stream, arrival

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SO_TIMESTAMPNS is Linux's")


def chunk(event: bytes) -> bytes:
    body = b"data: " + event + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(body), body)


def answered(client: socket.socket) -> None:
    """What the stream asked is read to its end."""
    head, _, body = client.recv(1 << 16).partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += client.recv(1 << 16)


def test_a_gap_is_between_the_writes_however_late_they_are_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = Stream(server.getsockname()[1], {"prompt": "x"})
        client, _ = server.accept()
        with client, stream.socket:
            answered(client)
            client.sendall(HEAD)
            while stream.last is None:  # the kernel has begun to note times
                client.sendall(chunk(b'{"choices":[{"text":"a"}]}'))
                assert stream.read()
            stream.gaps.clear()
            before = time.time()
            client.sendall(chunk(b'{"choices":[{"text":"b"}]}'))
            select.select([stream.socket], [], [])
            read_at = time.time()
            first = stream.last
            assert stream.read()
            assert first is not None and stream.last is not None
            assert first <= before <= stream.last <= read_at
            assert stream.gaps == [stream.last - first]


def test_events_without_text_are_no_chunks_and_the_next_request_follows() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = Stream(server.getsockname()[1], {"prompt": "x"})
        client, _ = server.accept()
        with client, stream.socket:
            answered(client)
            events = (b'{"choices":[{"text":""}]}', b'{"choices":[{"text":"a"}]}', b'{"usage":{}}', b"[DONE]")
            client.sendall(HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n")
            assert stream.read() and stream.gaps == []
            answered(client)  # it asked again


def test_a_refusal_ends_a_stream() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = Stream(server.getsockname()[1], {"prompt": "x"})
        client, _ = server.accept()
        with client, stream.socket:
            answered(client)
            client.sendall(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
            assert not stream.read()


def test_a_chunk_whose_time_was_not_noted_makes_no_gap() -> None:
    assert arrival([(socket.SOL_SOCKET, SO_TIMESTAMPNS + 1, b"")]) is None
