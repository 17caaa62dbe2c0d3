"""A model's pages as bytes, to be handed to another worker: keys and values of all layers, a drafter's among them.

    page     [layer 0][layer 1] ... [drafter's layers]
    frames   [                ][                     ]    at most FRAME_BYTES each, so that a message may hold them

Bytes are copied as they are: two workers can read each other's pages if model, executor, dtype and shapes are the same,
which the name of the layout says. Knows no sockets and no sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import torch

from services.worker.running.runner import PageMemory

__all__ = ["PageMemory", "TorchPages"]

# Far below what a message may have in one frame (mesh/transport).
FRAME_BYTES = 4 << 20


class TorchPages:
    """services/worker/running/runner.py's PageMemory."""

    def __init__(self, layers: Sequence[torch.Tensor], model: str) -> None:
        """`layers`: tensors whose first axis is the page. `model` is part of the layout's name."""
        self._layers = list(layers)
        shapes = [f"{each.dtype} {tuple(each.shape[1:])}" for each in layers]
        self.layout = blake2b("\n".join([model, *shapes]).encode(), digest_size=16).hexdigest()
        # Of each frame: its layers, each with its place in the frame.
        self._frames: list[list[tuple[torch.Tensor, int]]] = []
        sizes: list[int] = []
        for layer in self._layers:
            size = layer[0].numel() * layer.itemsize
            if not sizes or sizes[-1] + size > FRAME_BYTES:
                sizes.append(0)
                self._frames.append([])
            self._frames[-1].append((layer, sizes[-1]))
            sizes[-1] += size
        self.frame_bytes = tuple(sizes)

    @torch.inference_mode()
    def read(self, page: int) -> list[bytes]:
        frames = []
        for size, layers in zip(self.frame_bytes, self._frames, strict=True):
            frame = torch.empty(size, dtype=torch.uint8)
            for layer, begin in layers:
                _part(frame, begin, layer).copy_(layer[page])
            frames.append(frame.numpy().tobytes())
        return frames

    @torch.inference_mode()
    def write(self, page: int, frames: Sequence[bytes]) -> None:
        assert tuple(map(len, frames)) == self.frame_bytes
        for given, layers in zip(frames, self._frames, strict=True):
            # A copy: torch takes memory that it may write to.
            frame = torch.frombuffer(bytearray(given), dtype=torch.uint8)
            for layer, begin in layers:
                layer[page].copy_(_part(frame, begin, layer))


def _part(frame: torch.Tensor, begin: int, layer: torch.Tensor) -> torch.Tensor:
    """A layer's page within a frame, as numbers."""
    one = layer[0]
    return frame[begin : begin + one.numel() * layer.itemsize].view(layer.dtype).view(one.shape)
