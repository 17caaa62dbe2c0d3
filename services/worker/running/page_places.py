"""Where pages lie in memory, for a transport that reads them there; and slots, in which pages of others arrive.

    page     [layer 0: part][part][layer 1: part] ...     in the order of a page's bytes (page_memory.py)
    slot     [frame 0        ][frame 1          ] ...     the same bytes, in memory of its own

A part is what lies together in memory: a layer's page is one, or several where the page isn't the first axis. Knows no
transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.worker.running.page_memory import TorchPages

# Memory for pages on their way, and the most and the least of them.
SLOT_BYTES = 32 << 20
MOST_SLOTS, LEAST_SLOTS = 64, 2


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that a transport may read or write. `device` is the number of a GPU, 0 for the host."""

    address: int
    size: int
    device: int


@dataclass(frozen=True, slots=True)
class PartPlaces:
    """Of each part: its address in page 0, and how far it is from there to page 1."""

    addresses: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, page: int) -> list[int]:
        return [first + page * step for first, step in zip(self.addresses, self.strides, strict=True)]


class PagePlaces:
    def __init__(self, memory: TorchPages) -> None:
        layers = [layer for layer, _, _ in memory.tensors]
        parts = [(layer, at, size) for layer in layers for at, size in parts_of(layer)]
        self.places = PartPlaces(
            tuple(layer.data_ptr() + at for layer, at, _ in parts),
            tuple(layer.stride(0) * layer.itemsize for layer, _, _ in parts),
        )
        self.sizes = [size for _, _, size in parts]
        self.on_gpu = layers[0].is_cuda
        whole = max(1, sum(memory.frame_bytes))
        count = min(MOST_SLOTS, max(LEAST_SLOTS, SLOT_BYTES // whole))
        device = layers[0].device
        # Frames as page_memory.py has them, each an allocation of its own: so it is aligned.
        self.slots = [
            [torch.zeros(size, dtype=torch.uint8, device=device) for size in memory.frame_bytes] for _ in range(count)
        ]
        # Each storage once: layers may be views of one.
        extents = {_extent(each) for each in (*layers, *(frame for slot in self.slots for frame in slot))}
        number = device.index or 0
        self.regions = [Region(address, size, number) for address, size in sorted(extents)]
        self._memory = memory

    def in_slot(self, slot: int) -> list[int]:
        """The address of each part."""
        found: list[int] = []
        for layer, frame, begin in self._memory.tensors:
            at = self.slots[slot][frame].data_ptr() + begin
            for _, size in parts_of(layer):
                found.append(at)
                at += size
        return found


def parts_of(layer: torch.Tensor) -> list[tuple[int, int]]:
    """What of a page lies together: bytes from the page's first one, and size; in the order of the page's bytes."""
    page = layer[0]
    axes = list(zip(page.shape, page.stride(), strict=True))
    together = 1
    while axes and (axes[-1][0] == 1 or axes[-1][1] == together):
        together *= axes.pop()[0]
    begins = [0]
    for size, step in axes:
        begins = [begin + index * step for begin in begins for index in range(size)]
    return [(begin * layer.itemsize, together * layer.itemsize) for begin in begins]


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes, from its first to its last number."""
    last: Sequence[int] = [(size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.data_ptr(), (sum(last) + 1) * tensor.itemsize
