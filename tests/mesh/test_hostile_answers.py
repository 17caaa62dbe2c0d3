"""The dialling end, asked to read what a hostile acceptor answers.

The acceptor's own door under fire: test_zmq_transport.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from mesh_doubles.messages import Count, Echo, Witness, codec, mutate

from mesh.envelope import End, Failure, Farewell, Item, Reply, Welcome, encode_bundle

Mesh = Any  # the fixture of conftest.py
EPOCH = 7


def answers(rng: random.Random) -> list[list[Any]]:
    """What an honest acceptor may say; ids are small, so that many hit something that is open."""
    echo = codec.encode(Echo(1, "text"))
    number = rng.randrange(1, 60)
    welcome = Welcome("evil", EPOCH, 1)
    return [
        [welcome],
        [welcome, Reply(number, *echo[:2])],
        [Reply(number, *echo[:2])],
        [Failure(number, "busy", "words")],
        [Item(number, rng.randrange(1, 9), *echo[:2])],
        [End(number, rng.randrange(1, 9))],
        [Farewell()],
        [Welcome("evil", rng.randrange(1, 99), rng.randrange(1, 9))],
    ]


class Liar:
    """A ROUTER in a thread of its own that answers whoever speaks with `count` mutated bundles."""

    def __init__(self, endpoint: str, count: int, seed: int) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self._rng = random.Random(seed)
        self._left = count
        self.finished = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._left and not self._stop:
                if self._socket.poll(50):
                    self._answer(self._socket.recv_multipart()[0])
        finally:
            self.finished.set()
            self._socket.close()

    def _answer(self, who: bytes) -> None:
        # Routing ids are name|epoch|number; a bundle for another epoch would be dropped unread.
        epoch = int(who.split(b"|")[1], 16)
        for _ in range(min(100, self._left)):
            frames = [bytes(f) for f in encode_bundle(EPOCH, epoch, self._rng.choice(answers(self._rng)))]
            self._socket.send_multipart([who, *(mutate(self._rng, frames) if self._rng.random() < 0.8 else frames)])
            self._left -= 1

    def close(self) -> None:
        self._stop = True
        self._thread.join(10.0)
        self._context.term()


async def lied_to(endpoint: str, count: int, seed: int, ask: Callable[[], Any]) -> None:
    liar = Liar(endpoint, count, seed)
    try:
        async with asyncio.timeout(240):
            while not liar.finished.is_set():
                await ask()
    finally:
        liar.close()


async def a_node_asks(mesh: Mesh, endpoint: str, count: int) -> None:
    # Many of the answers are Farewells.
    near = await mesh.node("near", timing=replace(mesh.timing, farewell=0.01, linger=0.01))
    far = await mesh.node("far")
    await far.spawn(Witness(), "witness")
    ref = near.ref(endpoint, "witness")

    async def stream() -> None:
        async with ref.stream(Count(5), timeout=0.05) as items:
            async for _ in items:
                pass

    async def ask() -> None:
        await asyncio.gather(ref.ask(Echo(1), timeout=0.05), stream(), return_exceptions=True)

    await lied_to(endpoint, count, 1, ask)
    assert near.metrics.refused["malformed"] > count / 20
    assert await near.ref(far.endpoint, "witness").ask(Echo(5), timeout=10.0) == Echo(5)


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_mutated_answers_do_not_hurt_who_asked(
    count: int, zmq_mesh: Mesh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await a_node_asks(zmq_mesh, f"ipc://{tmp_path}/evil.sock", count)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
