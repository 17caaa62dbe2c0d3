"""What runs a `Network`: the interface between models/ and the owner of the sequences. Three implementations:
models/plain (plain torch, the truth), models/cpu (compiled loops) and models/gpu (Triton kernels).

A tap is a place of the network whose values are kept for drafters that read them:

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
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch

from models.batch import Batch

Tap = int | Literal["final"]
FINAL: Final = "final"


@dataclass(frozen=True, slots=True)
class Options:
    """How a network is run. `dtype` is of weights and activations: bfloat16, float32 or int8 (int8 weights and
    activations in the linears, bfloat16 or float32 outside of them). strict: a row's bits depend neither on its batch
    nor on how the prompt was cut. After `pages` come `branch_pages` more, for branches of trees (models/branches.py).
    `taps`: what `Output.features` holds, in this order; (): no features."""

    dtype: str
    pages: int
    page_tokens: int
    max_context: int
    threads: int = 1
    strict: bool = True
    branch_pages: int = 0
    taps: tuple[Tap, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """What one forward pass gives, on the executor's device. The next call may write over it."""

    # Of the wanted rows, float32 [W, vocab].
    logits: torch.Tensor
    # Of all rows, in the order of the tokens of the stretches (Batch.feature_rows): [R, taps · hidden], each row the
    # values of the taps side by side. The dtype is that of activations: float32 where Options.dtype is float32, else
    # bfloat16 (float32 for int8 on a CPU without bfloat16 instructions). None without taps.
    features: torch.Tensor | None = None


class Executor(Protocol):
    """Owns the weights and the pages. One call at a time."""

    # The most rows of one `forward`.
    max_rows: int
    # Numbers in the model's tensors, each counted once.
    parameters: int
    # How the model is run, for the ready box and the metric: "compiled loops (avx512_bf16), strict".
    path: str
    # Whether the promise of Options.strict is kept.
    strict: bool
    # Whether batches may have branches.
    branches: bool

    def forward(self, batch: Batch, hidden: torch.Tensor | None = None) -> Output:
        """Compute the rows of the batch; keys and values of all rows go to their slots. Logits have the same bits
        whatever the taps. `hidden` [R, hidden_size] is for networks with an entry, in the order of the tokens of the
        stretches, as `Output.features` are."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy page `source` to page `target`, in all layers."""
        ...

    def move(self, slots: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values from the first slot of each pair to the second, in all layers. No slot is both a
        source and a target."""
        ...


def check_taps(taps: Sequence[Tap], layers: int) -> None:
    """Raises `ValueError` for a tap that a network with `layers` layers lacks, or for a duplicate."""
    for tap in taps:
        if tap != FINAL and not (isinstance(tap, int) and 0 <= tap < layers):
            raise ValueError(f"tap {tap!r} is neither a layer, 0 to {layers - 1}, nor {FINAL!r}")
    if len(set(taps)) != len(taps):
        raise ValueError(f"taps {taps!r} name a place twice")
