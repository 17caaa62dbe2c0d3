"""A step's plan where kernels can read it, and memory for partial results: of fixed size and place, so that a launch
captured in a CUDA graph reads what each step puts there. Knows nothing of how a plan is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels.paged_attention.plan import ITEM, JOIN, Plan


class AttentionWork:
    """For at most `rows` rows and `slots` partial results. All in one piece of int32, copied at once:

    items counted | items | item_rows | row_slots | joins
    """

    def __init__(self, rows: int, slots: int, device: torch.device | str) -> None:
        # A row is in its own tile, and in a shared one; a tile makes one item, or as many as it takes slots.
        sizes = {"counts": 1, "items": (rows + slots) * ITEM, "item_rows": 2 * rows, "row_slots": rows}
        sizes["joins"] = rows * JOIN
        # Pieces begin at multiples of 16 bytes.
        sizes = {name: -(-size // 4) * 4 for name, size in sizes.items()}
        total = sum(sizes.values())
        pinned = torch.device(device).type == "cuda"
        self._host = torch.zeros(total, dtype=torch.int32, pin_memory=pinned)
        self._device = torch.zeros(total, dtype=torch.int32, device=device)
        self._numbers: dict[str, np.ndarray] = {}
        self.rows, self.slots, at = rows, slots, 0
        for name, size in sizes.items():
            self._numbers[name] = self._host.numpy()[at : at + size]
            setattr(self, name, self._device[at : at + size])
            at += size

    # Flat int32, on the device.
    counts: torch.Tensor  # items
    items: torch.Tensor
    item_rows: torch.Tensor
    row_slots: torch.Tensor
    joins: torch.Tensor

    def put(self, plan: Plan) -> None:
        """Asynchronous: the host must not put again before the device has read, which a step's end says."""
        self._numbers["counts"][:] = len(plan.items)
        for name in ("items", "item_rows", "row_slots", "joins"):
            numbers = getattr(plan, name).reshape(-1)
            self._numbers[name][: len(numbers)] = numbers
        self._device.copy_(self._host, non_blocking=True)


@dataclass(slots=True)
class Partials:
    """What splits leave for their join, in float32; one for all layers of a step."""

    sums: torch.Tensor  # [slots, heads, width]
    maxima: torch.Tensor  # [slots, heads]
    totals: torch.Tensor  # [slots, heads]
    # How many items of a row have ended, at its first slot, by block of heads; 0 between two launches.
    arrived: torch.Tensor  # [slots, heads] int32

    @staticmethod
    def make(slots: int, heads: int, width: int, device: torch.device | str) -> Partials:
        sums = torch.empty(max(slots, 1), heads, width, dtype=torch.float32, device=device)
        maxima = torch.empty(sums.shape[:2], dtype=torch.float32, device=device)
        return Partials(sums, maxima, torch.empty_like(maxima), torch.zeros_like(maxima, dtype=torch.int32))
