"""Taps: places of a network whose values are kept for drafters that read them. No torch.

    embed ─▶ layer 0 ─▶ layer 1 ─▶ … ─▶ layer N-1 ─▶ final norm ─▶ head ─▶ logits
                     │           │                │             │
              tap:   0           1               N-1          FINAL

Tap i is the residual stream after layer i: its input, what its attention added and what its MLP added, before the next
norm. EAGLE-3 reads a low, a middle and a high one. FINAL is the output of the final norm, which the head reads; MTP
reads it. In the terms of transformers' `output_hidden_states`, tap i is hidden_states[i + 1] for i < N-1, and FINAL is
the last of them; tap N-1 (not normed) is not among them. In the terms of vLLM's auxiliary hidden states, which are read
before a layer, its n is our tap n - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

Tap = int | Literal["final"]
FINAL: Final = "final"


def check_taps(taps: Sequence[Tap], layers: int) -> None:
    """Raises `ValueError` for a tap that a network with `layers` layers lacks, or for a duplicate."""
    for tap in taps:
        if tap != FINAL and not (isinstance(tap, int) and 0 <= tap < layers):
            raise ValueError(f"tap {tap!r} is neither a layer, 0 to {layers - 1}, nor {FINAL!r}")
    if len(set(taps)) != len(taps):
        raise ValueError(f"taps {taps!r} name a place twice")
