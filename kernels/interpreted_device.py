"""The device that Triton's interpreter stands for, on the CPU. It computes at once, so what would go wrong on a device
that computes later can't be seen in its results; it checks the order of use instead and raises `OutOfOrder`:

    a stage is written or sent again while its copy is under way
    what is fetched is read before it has arrived
    a capture waits for the device, or sends to it
    a captured graph would start other launches than a run now does: other kernels, numbers or addresses
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import launch


class OutOfOrder(Exception):
    """A device would have read or written something else; the message says what."""


class InterpretedDevice:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._capturing = False

    def stage(self, words: int, turns: int = 1) -> InterpretedStage:
        return InterpretedStage(words, self, turns)

    def fetch(self, there: torch.Tensor) -> InterpretedFetched:
        self.not_in_a_capture("fetches results")
        return InterpretedFetched(there)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Nothing is computed here: launches are only noted."""
        self._capturing = True
        try:
            with launch.only_compiling():
                # Memory that is made at its first use is made now.
                run()
                captured = _noted(run)
        finally:
            self._capturing = False

        def replay() -> None:
            found = _noted(run)
            if len(found) != len(captured):
                raise OutOfOrder(f"a graph of {len(captured)} launches is replayed for {len(found)}")
            for was, now in zip(captured, found, strict=True):
                if was != now:
                    raise OutOfOrder(f"a graph replays {was}; this step needs {now}")

        return replay

    def not_in_a_capture(self, what: str) -> None:
        if self._capturing:
            raise OutOfOrder(f"a capture {what}")


class InterpretedStage:
    def __init__(self, words: int, device: InterpretedDevice, turns: int) -> None:
        # By turn, the last one first: numbers, and what is under way of them.
        self._turns: deque[tuple[np.ndarray, np.ndarray | None]] = deque(
            (np.zeros(words, np.int32), None) for _ in range(turns)
        )
        self.numbers, self._under_way = self._turns[0]
        self.there = torch.zeros(words, dtype=torch.int32)
        self._device = device

    def wait(self) -> None:
        self._device.not_in_a_capture("waits for the device")
        self._turns[0] = self.numbers, self._under_way
        self._turns.rotate()
        self.numbers, self._under_way = self._turns[0]
        self._check()
        self._under_way = None

    def send(self, words: int) -> None:
        self._device.not_in_a_capture("sends inputs")
        self._check()
        if self._under_way is not None:
            raise OutOfOrder("a stage is sent again before its last copy has been waited for")
        self._under_way = self.numbers[:words].copy()
        self.there[:words] = torch.from_numpy(self._under_way)

    def _check(self) -> None:
        sent = self._under_way
        if sent is not None and not np.array_equal(sent, self.numbers[: len(sent)]):
            raise OutOfOrder("a stage was written while its copy was under way")


class InterpretedFetched:
    def __init__(self, there: torch.Tensor) -> None:
        self._copy = there.clone()
        self._arrived = False

    @property
    def here(self) -> torch.Tensor:
        if not self._arrived:
            raise OutOfOrder("results are read before they have arrived")
        return self._copy

    def wait(self) -> torch.Tensor:
        self._arrived = True
        return self._copy


class _Births(TorchDispatchMode):
    """Where the memory lies that torch makes in a run. A graph has memory of its own for it, wherever it lies here."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()
        # Alive, so that no address is given twice.
        self._kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {_storage(each) for each in (*args, *(kwargs or {}).values()) if isinstance(each, torch.Tensor)}
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor) and _storage(each) not in given:
                self.storages.add(_storage(each))
                self._kept.append(each)
        return out


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _noted(run: Callable[[], None]) -> list[tuple[Any, ...]]:
    with _Births() as births, launch.noting() as launches:
        run()
    return [
        (each.kernel.__name__, each.grid, *each.constants.items(), *(_argument(a, births.storages) for a in each.args))
        for each in launches
    ]


def _argument(argument: Any, born: set[int]) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    where = "of the graph" if _storage(argument) in born else argument.data_ptr()
    return where, argument.dtype, tuple(argument.stride())
