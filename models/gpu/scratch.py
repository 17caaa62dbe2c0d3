"""Memory that all layers of a step use in turn: made at its first use, and then always in the same place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.paged_attention.work import Partials


class Scratch:
    def __init__(self, rows: int, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows, self._slots, self._dtype, self._device = rows, slots, dtype, device
        self._kept: dict[Any, Any] = {}

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def partials(self, heads: int, width: int) -> Partials:
        """What splits of long contexts leave for their join."""
        make = lambda: Partials.make(self._slots, heads, width, self._device)  # noqa: E731
        return self.kept(("partials", heads, width), make)

    def attended(self, rows: int, numbers: int) -> torch.Tensor:
        """[rows, numbers]. Rows that are in no plan are never written, so they begin as zeros."""
        make = lambda: torch.zeros(self._rows, numbers, dtype=self._dtype, device=self._device)  # noqa: E731
        return self.kept(("attended", numbers), make)[:rows]

    def read(self, rows: int, heads: int, width: int) -> torch.Tensor:
        """[rows, heads, width] float32, which a delta net's rows read of its states. Rows that are no sequence's are
        never written."""
        make = lambda: torch.zeros(self._rows, heads, width, device=self._device)  # noqa: E731
        return self.kept(("read", heads, width), make)[:rows]
