"""A model's pages as bytes, to be handed to another worker: keys and values of all layers, a drafter's among them.

    page     [layer 0][layer 1] ... [drafter's layers]
    frames   [                ][                     ]    at most FRAME_BYTES each, so that a message may hold them

A page has the bytes of the whole model, whatever part of them this process has: two workers can read each other's pages
if model, executor, dtype and shapes are the same, which the name of the layout says. Knows no sockets and no sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

import torch

from models.executor import PageTensor
from services.worker.running.runner import PageMemory

__all__ = ["PageMemory", "TorchPages"]

# Far below what a message may have in one frame (mesh/transport).
FRAME_BYTES = 4 << 20


class OtherParts(Protocol):
    """Those of a worker that is split (services/worker/parallel/pages.py). A page is given as views of the layers."""

    def read(self, pages: Sequence[int], wholes: Sequence[Sequence[torch.Tensor]]) -> None: ...
    def write(self, page: int, whole: Sequence[torch.Tensor]) -> None: ...


class TorchPages:
    """services/worker/running/runner.py's PageMemory."""

    def __init__(self, layers: Sequence[PageTensor], model: str, others: OtherParts | None = None) -> None:
        """`model` is part of the layout's name."""
        self._layers, self._others = list(layers), others
        shapes = [f"{each.memory.dtype} {each.whole}" for each in layers]
        self.layout = blake2b("\n".join([model, *shapes]).encode(), digest_size=16).hexdigest()
        # Of each layer: its frame, and where it begins in it.
        self._places: list[tuple[int, int]] = []
        sizes: list[int] = []
        for layer in self._layers:
            size = _bytes(layer)
            if not sizes or sizes[-1] + size > FRAME_BYTES:
                sizes.append(0)
            self._places.append((len(sizes) - 1, sizes[-1]))
            sizes[-1] += size
        self.frame_bytes = tuple(sizes)

    @torch.inference_mode()
    def read(self, pages: Sequence[int]) -> list[list[bytes]]:
        read = [[torch.empty(size, dtype=torch.uint8) for size in self.frame_bytes] for _ in pages]
        wholes = [self._whole(frames) for frames in read]
        for page, whole in zip(pages, wholes, strict=True):
            for layer, place in zip(self._layers, whole, strict=True):
                _own(layer, place).copy_(layer.memory[page])
        if self._others is not None:
            self._others.read(pages, wholes)
        return [[frame.numpy().tobytes() for frame in frames] for frames in read]

    @torch.inference_mode()
    def write(self, page: int, frames: Sequence[bytes | torch.Tensor]) -> None:
        """Frames may be tensors of bytes where pages are."""
        assert tuple(map(len, frames)) == self.frame_bytes
        whole = self._whole([_writable(frame) for frame in frames])
        for layer, place in zip(self._layers, whole, strict=True):
            layer.memory[page].copy_(_own(layer, place))
        if self._others is not None:
            self._others.write(page, whole)

    @property
    def tensors(self) -> list[tuple[torch.Tensor, int, int]]:
        """What this process has of all pages, in the order of a page's bytes, whose first axis is the page. Of each, in
        which frame it is, and where it begins there."""
        return [(layer.memory, *place) for layer, place in zip(self._layers, self._places, strict=True)]

    def _whole(self, frames: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The layers in a page's frames, as numbers."""
        return [
            frames[frame][begin : begin + _bytes(layer)].view(layer.memory.dtype).view(layer.whole)
            for layer, (frame, begin) in zip(self._layers, self._places, strict=True)
        ]


def _writable(frame: bytes | torch.Tensor) -> torch.Tensor:
    """Torch takes no memory that can't be written: bytes are copied."""
    return frame if isinstance(frame, torch.Tensor) else torch.frombuffer(bytearray(frame), dtype=torch.uint8)


def _bytes(layer: PageTensor) -> int:
    return torch.Size(layer.whole).numel() * layer.memory.itemsize


def _own(layer: PageTensor, place: torch.Tensor) -> torch.Tensor:
    """Of a layer in a page, what is here: the first heads, for rank 0 of several."""
    return place.narrow(layer.axis - 1, 0, layer.memory.shape[layer.axis]) if layer.axis else place
