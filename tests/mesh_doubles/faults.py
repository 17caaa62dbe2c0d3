"""Faults of a network, drawn from a seed, for the network in memory (memory.py).

A ZeroMQ connection loses, repeats and reorders nothing before it ends; what holds over a network that does holds there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from mesh.transport import Frame


class Faults:
    """Probabilities are per message; delays in seconds.

    drop: it never arrives. duplicate: it arrives twice. reorder: it arrives up to `jitter` late. damage: some of its
    bytes are changed, cut off or added.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        delay: float = 0.0,
        drop: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        damage: float = 0.0,
        jitter: float = 0.01,
    ) -> None:
        self.delay, self.drop, self.duplicate = delay, drop, duplicate
        self.reorder, self.damage, self.jitter = reorder, damage, jitter
        self.carried = self.dropped = self.damaged = 0
        self._chance = random.Random(seed)

    def arrivals(self, frames: Sequence[Frame]) -> Iterator[tuple[float, list[bytes]]]:
        """The copies of a message that arrive, each with its delay."""
        chance = self._chance
        if chance.random() < self.drop:
            self.dropped += 1
            return
        for _ in range(2 if chance.random() < self.duplicate else 1):
            late = self.delay + (chance.uniform(0.0, self.jitter) if chance.random() < self.reorder else 0.0)
            copy = [bytes(frame) for frame in frames]
            if chance.random() < self.damage:
                self.damaged += 1
                copy[0] = self._damaged(copy[0])
            self.carried += 1
            yield late, copy

    def _damaged(self, data: bytes) -> bytes:
        chance, way = self._chance, self._chance.randrange(3)
        if way == 0:
            return data[: chance.randrange(len(data) + 1)]
        if way == 1:
            return data + chance.randbytes(chance.randint(1, 64))
        found = bytearray(data)
        for _ in range(chance.randint(1, 8) if found else 0):
            found[chance.randrange(len(found))] = chance.randrange(256)
        return bytes(found)
