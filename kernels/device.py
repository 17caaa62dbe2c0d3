"""What only a device has: memory that it reads while the host goes on, results that arrive later, captured graphs.

This is all that executor and verifier know of it. Everything is in the order of one stream. In Triton's interpreter
the same stands on the CPU and checks the order of use (interpreted_device.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch

# Words: arrays begin at multiples of 16 bytes, which kernels are compiled for.
ALIGN = 4


def aligned(words: int) -> int:
    return -(-words // ALIGN) * ALIGN


def starts_of(sizes: Iterable[int]) -> list[int]:
    """Offsets of arrays laid one behind the other, given their sizes in words; the last is where all end."""
    return [0, *accumulate(map(aligned, sizes))]


class Stage(Protocol):
    """Words of int32 that the host writes and the device gets a copy of, always at the same address. With several
    `turns` the host has as many arrays, and uses one after the other."""

    numbers: np.ndarray
    there: torch.Tensor

    def wait(self) -> None:
        """To be called before `numbers` are written. Waits until the device has read what was last sent from them.
        With several turns, `numbers` are afterwards those of the next turn."""
        ...

    def send(self, words: int) -> None:
        """Copy the first words. What is started afterwards finds them `there`."""
        ...


class Fetched(Protocol):
    """A copy of a tensor, under way to the host."""

    here: torch.Tensor  # not to be read before `wait`

    def wait(self) -> torch.Tensor:
        """Until it is here."""
        ...


class Device(Protocol):
    def stage(self, words: int, turns: int = 1) -> Stage: ...

    def fetch(self, there: torch.Tensor) -> Fetched: ...

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """A graph of what `run` starts, as a function that starts it again: with the same numbers, at the same
        addresses. `run` is called more than once here; it must not wait for the device, and do no harm."""
        ...


def device_of(device: torch.device) -> Device:
    if device.type == "cuda":
        return CudaDevice(device)
    from kernels.interpreted_device import InterpretedDevice

    return InterpretedDevice(device)


class CudaDevice:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: tuple[int, int] | None = None
        self._stream: torch.cuda.Stream | None = None

    def stage(self, words: int, turns: int = 1) -> Stage:
        return _CudaStage(words, self._device, turns)

    def fetch(self, there: torch.Tensor) -> Fetched:
        return _CudaFetched(there)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """All graphs share one pool of memory: captured from the largest on, smaller ones fit into what it took."""
        if self._pool is None or self._stream is None:
            self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            # Compiles and loads kernels, which a capture can't.
            run()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        torch.cuda.synchronize(self._device)
        return graph.replay


class _CudaStage:
    def __init__(self, words: int, device: torch.device, turns: int) -> None:
        hosts = [torch.zeros(words, dtype=torch.int32, pin_memory=True) for _ in range(turns)]
        self._turns = deque((host, host.numpy(), torch.cuda.Event()) for host in hosts)
        self._host, self.numbers, self._sent = self._turns[0]
        self.there = torch.zeros(words, dtype=torch.int32, device=device)

    def wait(self) -> None:
        self._turns.rotate()
        self._host, self.numbers, self._sent = self._turns[0]
        self._sent.synchronize()

    def send(self, words: int) -> None:
        self.there[:words].copy_(self._host[:words], non_blocking=True)
        self._sent.record()


class _CudaFetched:
    def __init__(self, there: torch.Tensor) -> None:
        # Into pinned memory: torch takes it for copies that don't block.
        self.here = there.to("cpu", non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> torch.Tensor:
        self._event.synchronize()
        return self.here
