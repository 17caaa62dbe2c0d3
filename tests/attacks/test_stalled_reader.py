"""A client asks for a long stream and reads nothing: what the server holds for it is bounded, in the kernel, too."""

from __future__ import annotations

import socket
from pathlib import Path

import orjson
from fake_mesh import MODEL, FakeMesh, floods, until

MOST_IN_KERNEL = 128 * 1024
BODY = orjson.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 200, "stream": True})
ASKS = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
)


def in_kernel(port: int) -> int:
    """Bytes that were sent from this port and not acknowledged by the client's machine."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == port and state == "01":
            return int(queues.partition(":")[0], 16)
    raise AssertionError("there is no connection")


async def test_a_stalled_reader_holds_little_in_the_kernel() -> None:
    mesh = FakeMesh()
    client = socket.socket()
    try:
        await mesh.start_tokenizer()
        await mesh.start_target(floods)
        door = await mesh.start_door()
        # The client's own buffer is small, so that it's the server's that fills.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", door.port))
        client.sendall(ASKS + BODY)
        await until(lambda: any(each.writing_paused for each in door.connections.open))
        assert 0 < in_kernel(door.port) <= MOST_IN_KERNEL
    finally:
        client.close()
        await mesh.close()
