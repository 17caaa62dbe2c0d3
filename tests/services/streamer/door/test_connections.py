"""Clients that are slow on purpose, spoken to over raw sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fake_mesh import MODEL, FakeMesh, floods, says, until
from raw_sockets import BODY, QUICK, answer, connect, head

from services.streamer.door.connections import NEVER, WRITE_BUFFER, Connection, Connections, Doing


async def test_a_client_that_says_nothing_is_let_go(mesh: FakeMesh) -> None:
    await mesh.start_door(**QUICK)
    reader, writer = await connect(mesh)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_half_a_header_is_answered_408(mesh: FakeMesh) -> None:
    await mesh.start_door(**QUICK)
    reader, writer = await connect(mesh)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    status, body = await asyncio.wait_for(answer(reader), 5)
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_header_that_trickles_gains_no_time(mesh: FakeMesh) -> None:
    await mesh.start_door(**QUICK)
    reader, writer = await connect(mesh)

    async def trickle() -> None:
        for byte in b"POST /v1/completions HTTP/1.1\r\nX-Slow: " + b"a" * 1000:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    status, _ = await asyncio.wait_for(answer(reader), 5)
    assert status == 408
    trickling.cancel()
    writer.close()


async def test_half_a_body_is_answered_408(mesh: FakeMesh) -> None:
    await mesh.start_door(**QUICK)
    reader, writer = await connect(mesh)
    writer.write(head(1000) + BODY[:5])
    status, body = await asyncio.wait_for(answer(reader), 5)
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_a_slow_second_request_is_timed_as_the_first(mesh: FakeMesh) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(**QUICK)
    reader, writer = await connect(mesh)
    writer.write(head(len(BODY)) + BODY)
    assert (await answer(reader))[0] == 200
    writer.write(b"GET /version HTTP/1.1\r\n")
    status, _ = await asyncio.wait_for(answer(reader), 5)
    assert status == 408
    writer.close()


async def test_an_idle_connection_is_kept_and_pipelined_requests_are_answered_in_order(
    mesh: FakeMesh,
) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door(**QUICK)
    reader, writer = await connect(mesh)
    writer.write((head(len(BODY)) + BODY) * 2 + head(0, target="GET /version"))
    for _ in range(2):
        assert (await asyncio.wait_for(answer(reader), 5))[1]["choices"][0]["text"] == "hello"
    assert (await answer(reader))[0] == 200
    await asyncio.sleep(1.0)  # idle for longer than body_timeout
    writer.write(head(len(BODY)) + BODY)
    assert (await asyncio.wait_for(answer(reader), 5))[0] == 200
    writer.close()


async def test_headers_without_end_are_refused(mesh: FakeMesh) -> None:
    await mesh.start_door()
    reader, writer = await connect(mesh)
    writer.write(b"GET /version HTTP/1.1\r\n")
    for number in range(60):
        writer.write(f"X-{number}: {'a' * 1000}\r\n".encode())
        await asyncio.sleep(0)
    status, _ = await asyncio.wait_for(answer(reader), 5)
    assert status in (400, 431)
    writer.close()


async def test_headers_that_come_at_once_have_the_same_limit(mesh: FakeMesh) -> None:
    await mesh.start_door()
    for lines, expected in ((42, 431), (30, 200)):
        reader, writer = await connect(mesh)
        many = "".join(f"X-{number}: {'a' * 990}\r\n" for number in range(lines))
        writer.write(f"GET /version HTTP/1.1\r\nHost: x\r\n{many}\r\n".encode())
        status, body = await asyncio.wait_for(answer(reader), 5)
        assert status == expected and (status == 200 or body["error"]["code"] == "headers_too_large")
        writer.close()


async def test_what_is_no_http_is_answered_400(mesh: FakeMesh) -> None:
    await mesh.start_door()
    tls_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"
    for nonsense in (tls_hello, b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):
        reader, writer = await connect(mesh)
        writer.write(nonsense)
        status, body = await asyncio.wait_for(answer(reader), 5)
        assert (status, body["error"]["code"]) == (400, "invalid_http")
        writer.close()


async def test_a_client_that_expects_to_be_asked_on_is(mesh: FakeMesh) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    reader, writer = await connect(mesh)
    writer.write(head(len(BODY), "Expect: 100-continue"))
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(BODY)
    assert (await answer(reader))[0] == 200
    writer.close()


async def test_an_old_client_gets_its_stream_unchunked(mesh: FakeMesh) -> None:
    await mesh.start_target(says("hello"))
    await mesh.start_door()
    reader, writer = await connect(mesh)
    body = orjson.dumps({**orjson.loads(BODY), "stream": True})
    writer.write(head(len(body)).replace(b"HTTP/1.1", b"HTTP/1.0") + body)
    received = await asyncio.wait_for(reader.read(), 5)
    headers, _, rest = received.partition(b"\r\n\r\n")
    assert b"chunked" not in headers.lower()
    assert rest.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n")
    writer.close()


async def test_a_client_that_does_not_read_is_cut_and_its_work_cancelled(mesh: FakeMesh) -> None:
    target = await mesh.start_target(floods)
    door = await mesh.start_door(**QUICK)
    _, writer = await connect(mesh, limit=1024)
    body = orjson.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 200, "stream": True})
    writer.write(head(len(body)) + body)
    await asyncio.wait_for(target.was_cancelled.wait(), 20)
    await until(lambda: door.load() == 0)
    writer.close()


async def test_connections_beyond_the_cap_are_told_so(mesh: FakeMesh) -> None:
    await mesh.start_door(max_connections=2)
    open_ones = [await connect(mesh) for _ in range(2)]
    for _, writer in open_ones:
        writer.write(b"GET /ver")  # under way: not idle
    await asyncio.sleep(0.05)
    reader, writer = await connect(mesh)
    status, body = await asyncio.wait_for(answer(reader), 5)
    assert (status, body["error"]["code"]) == (503, "too_many_connections")
    writer.close()
    for _, each in open_ones:
        each.close()


async def test_an_idle_connection_makes_room_for_a_new_one(mesh: FakeMesh) -> None:
    await mesh.start_door(max_connections=2)
    open_ones = [await connect(mesh) for _ in range(2)]
    for reader, writer in open_ones:
        writer.write(head(0, target="GET /version"))
        assert (await answer(reader))[0] == 200
    reader, writer = await connect(mesh)
    writer.write(head(0, target="GET /version"))
    assert (await asyncio.wait_for(answer(reader), 5))[0] == 200
    reads = [asyncio.create_task(reader.read()) for reader, _ in open_ones]
    closed, _ = await asyncio.wait(reads, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert [each.result() for each in closed] == [b""]
    for each in reads:
        each.cancel()
    for _, open_one in [*open_ones, (reader, writer)]:
        open_one.close()


class Link(asyncio.Transport):
    """A transport whose client reads as much as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True

    close = abort


async def test_a_slow_reader_of_much_data_is_kept_and_one_that_stops_is_cut() -> None:
    async def handler(http: Any) -> None: ...

    connections = Connections(limit=10, body_timeout=1000.0, write_timeout=30.0)
    connection, link = connections.server(handler, max_body_bytes=1024)(), Link()
    assert isinstance(connection, Connection)
    connection.connection_made(link)
    connection.doing, connection.deadline = Doing.ANSWERING, NEVER
    began = asyncio.get_running_loop().time()
    link.unread = 3 * WRITE_BUFFER
    connection.pause_writing()
    link.unread -= WRITE_BUFFER
    connections.sweep(began + 31.0)
    assert not link.aborted
    link.unread -= WRITE_BUFFER - 1
    connections.sweep(began + 60.0)
    assert not link.aborted
    connections.sweep(began + 62.0)
    assert link.aborted
    connection.connection_lost(None)
