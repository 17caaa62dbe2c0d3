"""Lines between the nodes of a worker: signed, bounded, and lost when the other side is."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from services.worker.parallel import line as lines
from services.worker.parallel.line import Beat, Beats, Hello, Line, LineLost, Lost, Refused, Told

HELLO = Hello("1.0", 2, 1, 4, ("tiny", "a", "b", "c"))
TOLD = Told("plain", "none", False, 4, 7000, "ab", {"dtype": "float32", "threads": 2, "strict": True})


def ends_of_a_connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


@contextmanager
def pair(secret: bytes = b"x", other: bytes = b"x") -> Iterator[tuple[Line, Line]]:
    ends = ends_of_a_connection()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(Line, ends[0], secret, True)
        second = pool.submit(Line, ends[1], other, False)
        both = first.result(), second.result()
    try:
        yield both
    finally:
        for each in both:
            each.close()


def test_what_is_said_is_heard_in_order_and_with_its_types() -> None:
    with pair() as (worker, node):
        for message in (HELLO, Beat(), Lost("rank 1 ended with 1")):
            node.say(message)
        for told in (TOLD, Refused("another model", False)):
            worker.say(told)
        assert [worker.hear() for _ in range(3)] == [HELLO, Beat(), Lost("rank 1 ended with 1")]
        assert [node.hear() for _ in range(2)] == [TOLD, Refused("another model", False)]


@pytest.mark.parametrize("other", [b"", b"y"])
def test_another_secret_is_noticed_by_both_before_anything_is_told(other: bytes) -> None:
    with pair(b"x", other) as (worker, node):
        node.say(HELLO)
        worker.say(TOLD)
        for side in (worker, node):
            with pytest.raises(LineLost, match="keys_dir"):
                side.hear()


def test_a_line_of_the_same_connection_is_not_taken_twice_nor_back() -> None:
    text = lines.msgspec.json.encode(Beat())
    with pair() as (worker, node):
        node._socket.sendall((node._sign(b"k", 0, text) + text + b"\n") * 2)
        assert worker.hear() == Beat()
        with pytest.raises(LineLost, match="keys"):
            worker.hear()
    with pair() as (worker, node):
        # To the side that said it.
        worker._own = b"k"
        worker.say(Beat())
        with pytest.raises(LineLost, match="keys"):
            node.hear()


@pytest.mark.parametrize(
    "text",
    [
        b"{}", b"[]", b"\x80\x04.", b'{"type":"Beat","more":1}', b'{"type":"Exec"}',
        b'{"type":"Lost","why":"a\\nb"}', b'{"type":"Lost","why":"' + b"a" * 1001 + b'"}',
        json.dumps({**json.loads(lines.msgspec.json.encode(TOLD)), "executor": "os.system"}).encode(),
        json.dumps({**json.loads(lines.msgspec.json.encode(TOLD)), "options": {"taps": [1]}}).encode(),
    ],
)  # fmt: skip
def test_what_is_no_message_ends_the_line_also_when_it_is_signed(text: bytes) -> None:
    with pair() as (worker, node):
        worker._socket.sendall(worker._sign(b"0", 0, text) + text + b"\n")
        with pytest.raises(LineLost, match="can't be read"):
            node.hear()


def test_a_stranger_who_says_too_much_or_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "SILENCE", 0.05)
    ours, theirs = ends_of_a_connection()
    with ours, theirs, pytest.raises(LineLost, match="nothing was heard"):
        Line(ours, b"", True)
    ours, theirs = ends_of_a_connection()
    with ours, theirs:
        theirs.sendall(b"x" * 9000)
        with pytest.raises(LineLost, match="too much"):
            Line(ours, b"", True)
    ours, theirs = ends_of_a_connection()
    with ours, theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(LineLost, match="no node"):
            Line(ours, b"", True)


def test_an_end_and_a_silence_are_noticed_and_beats_keep_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "SILENCE", 0.3)
    monkeypatch.setattr(lines, "BEAT", 0.01)
    with pair() as (worker, node):
        beats = Beats(node)
        assert [worker.hear() for _ in range(60)] == [Beat()] * 60
        beats.close()
        with pytest.raises(LineLost, match="nothing was heard"):
            while True:
                worker.hear()
    with pair() as (worker, node):
        node.close("rank 3 is gone")
        with pytest.raises(LineLost, match="it has ended"):
            worker.hear()
        with pytest.raises(LineLost, match="rank 3 is gone"):
            node.hear()
