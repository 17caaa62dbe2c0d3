"""What no ZeroMQ would send, and peers that leave in the middle: a dialler must outlive it, and find its successor.

libzmq ends a process where its own assertions fail, so who dials here is a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

from mesh_doubles.messages import Witness, until

from tests.mesh.raw_peer import RawAcceptor, command, frame, message

Mesh = Any  # the fixture of conftest.py

# Asks at all addresses at once, and says at which it has been answered.
NODE = """
import asyncio, sys
from mesh.errors import MeshError
from mesh.node import Node
from mesh.transport.zmq import ZmqTransport
from mesh_doubles.messages import Echo, codec

async def ask(node, endpoint):
    ref, answer = node.ref(endpoint, "witness"), None
    while answer != Echo(5):
        try:
            answer = await ref.ask(Echo(5), timeout=0.05)
        except MeshError:
            pass
    print(endpoint, flush=True)

async def main():
    node = Node(ZmqTransport(), codec, name="near")
    await node.start()
    await asyncio.gather(*(ask(node, endpoint) for endpoint in sys.argv[1:]))
    await node.stop()

asyncio.run(main())
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


async def test_who_dials_outlives_what_is_said_and_finds_the_successor(zmq_mesh: Mesh, tmp_path: Path) -> None:
    hostile = [RawAcceptor(tmp_path / f"far{at}", said, times=10) for at, said in enumerate(WORDS.values())]
    words = {f"ipc://{tmp_path / f'far{at}'}": words for at, words in enumerate(WORDS)}
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    command = [sys.executable, "-X", "faulthandler", "-c", NODE, *words]
    asking = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=env)
    said = asyncio.ensure_future(asking.communicate())
    try:
        for at, acceptor in enumerate(hostile):
            await until(lambda acceptor=acceptor: acceptor.gone.is_set() or said.done(), timeout=60.0)  # type: ignore[misc]
            if not said.done():
                far = await zmq_mesh.node(f"far{at}")
                await far.spawn(Witness(), "witness")
        out, errors = await asyncio.wait_for(asyncio.shield(said), 60.0)
    finally:
        # It would go on asking.
        if asking.returncode is None:
            asking.kill()
            await said
    lost = [words[endpoint] for endpoint in words.keys() - set(out.decode().split())]
    assert (asking.returncode, lost) == (0, []), errors.decode()
