"""What no ZeroMQ would send, and peers that leave in the middle: a dialler must outlive it, and find its successor.

libzmq ends a process where its own assertions fail, so those that dial here are processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from mesh_doubles.messages import Witness, until

from tests.mesh.raw_peer import RawAcceptor, command, frame, message

Mesh = Any  # the fixture of conftest.py

LINK = """
import sys
from mesh.blocking import BlockingLink
from mesh.errors import MeshError
from mesh_doubles.messages import Echo, codec
link = BlockingLink(sys.argv[1], "witness", codec, "stepper")
answer = None
while answer != Echo(5):
    try:
        answer = link.ask(Echo(5), timeout=0.05)
    except MeshError:
        pass
link.close()
print("alive")
"""

NODE = """
import asyncio, sys
from mesh.errors import MeshError
from mesh.node import Node
from mesh_doubles.messages import Echo, codec
from mesh.transport.zmq import ZmqTransport

async def main():
    node = Node(ZmqTransport(), codec, name="near")
    await node.start()
    ref, answer = node.ref(sys.argv[1], "witness"), None
    while answer != Echo(5):
        try:
            answer = await ref.ask(Echo(5), timeout=0.05)
        except MeshError:
            pass
    await node.stop()

asyncio.run(main())
print("alive")
"""

ROOT = Path(__file__).resolve().parents[2]

WORDS = {
    "a message of twenty thousand frames": message(*[b""] * 20_000),
    "many messages of four frames": message(b"x", b"x", b"x", b"") * 250,
    "half a message": message(*[b"x"] * 300)[:-3],
    "no ZMTP": random.Random(1).randbytes(3000),
    "commands without a name, or cut short": frame(b"", 4) * 20 + command(b"PING") * 20,
    "pings": command(b"PING", b"\0\0") * 2000,
    "nothing": b"",
}


@pytest.mark.parametrize("dialler", [LINK, NODE], ids=["link", "node"])
@pytest.mark.parametrize("words", WORDS)
async def test_who_dials_outlives_what_is_said_and_finds_the_successor(
    words: str, dialler: str, zmq_mesh: Mesh, tmp_path: Path
) -> None:
    hostile = RawAcceptor(tmp_path / "far", WORDS[words], times=10)
    arguments = [sys.executable, "-X", "faulthandler", "-c", dialler, f"ipc://{tmp_path / 'far'}"]
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    asking = await asyncio.create_subprocess_exec(*arguments, stdout=pipe, stderr=pipe, env=env)
    said = asyncio.ensure_future(asking.communicate())
    await until(lambda: hostile.gone.is_set() or said.done(), timeout=60.0)
    if not said.done():
        far = await zmq_mesh.node("far")
        await far.spawn(Witness(), "witness")
    out, errors = await asyncio.wait_for(said, 60.0)
    assert (asking.returncode, out.decode().strip()) == (0, "alive"), errors.decode()
