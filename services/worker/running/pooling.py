"""Embeddings of prompts, from the hidden states behind the final norm.

    rows           b0 | c0 c1 | a1 a2         a1 a2: of a's last two tokens, to be pooled; c: a draft, verified
    logits         b0   c0 c1

A prompt comes in chunks. What is pooled of them is added up row by row, in the order of the text: the sum has the same
bits however the prompt is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from services.worker.running.work import SequenceWork


class Pool:
    """The hidden states of one prompt so far."""

    def __init__(self) -> None:
        self._sum: np.ndarray | None = None
        self._rows = 0

    def add(self, rows: np.ndarray) -> None:  # [R, H] float32
        if self._sum is None:
            self._sum = np.zeros(rows.shape[1])  # float64
        for row in rows:
            self._sum += row
        self._rows += len(rows)

    def mean(self) -> np.ndarray:  # [H] float32
        assert self._sum is not None
        return (self._sum / self._rows).astype(np.float32)


def pool(
    items: Sequence[SequenceWork], pooled: torch.Tensor, pools: Mapping[int, Pool]
) -> dict[int, bytes]:
    """Add what is pooled of a step, and return the embeddings of the prompts that are complete. One that is not finite
    is left out. `pooled` [P, H]: in the order of the items."""
    states = pooled.float().cpu().numpy()
    found: dict[int, bytes] = {}
    begin = 0
    for item in items:
        if not item.pooled:
            continue
        own = pools[item.sequence_id]
        own.add(states[begin : begin + item.pooled])
        begin += item.pooled
        if item.verify and np.isfinite(mean := own.mean()).all():
            found[item.sequence_id] = mean.tobytes()
    return found
