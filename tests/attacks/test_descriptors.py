"""More connections than the process may have descriptors: each gets an answer or is closed, and the server goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
LIMIT = 256
ATTACKERS = 400
# A streamer with its default settings, in a process of its own because the limit is the process's.
SERVER = """
import asyncio, os, sys, uvloop
from fake_mesh import FakeMesh

async def main():
    mesh = FakeMesh()
    await mesh.start_tokenizer()
    door = await mesh.start_door()
    print(door.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    # What a new worker's sockets need, and the port of /metrics.
    print(len([os.open(os.devnull, os.O_RDONLY) for _ in range(64)]), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await mesh.close()

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def connect(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(b"GET /ver")  # under way: not idle
    return client


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT // 2, LIMIT))


def test_connections_beyond_the_descriptors_are_refused_and_the_others_served() -> None:
    root = HERE.parents[2]
    places = (root, root / "tests", root / "tests/services/streamer")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=limited,
    ) as server, contextlib.ExitStack() as clients:  # fmt: skip
        assert server.stdin and server.stdout and server.stderr
        try:
            port = int(server.stdout.readline())
            first = clients.enter_context(connect(port))
            last = [clients.enter_context(connect(port)) for _ in range(ATTACKERS)][-1]
            # Refused or dropped, but not left waiting.
            with contextlib.suppress(ConnectionResetError):
                assert last.recv(100).split(b" ")[1:2] in ([], [b"503"])
            server.stdin.write(b"\n")
            server.stdin.flush()
            assert server.stdout.readline() == b"64\n"
            # Who was there first is served.
            first.sendall(b"sion HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert first.recv(100).startswith(b"HTTP/1.1 200 ")
        finally:
            server.stdin.close()
            log = server.stderr.read().decode()
        assert log.count("max_connections") == 1
