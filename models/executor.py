"""What runs a `Network`: the seam between models/ and whoever owns sequences. The peers are models/plain (plain
torch, the truth), models/cpu (compiled loops) and models/gpu (Triton kernels)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from models.batch import Batch


@dataclass(frozen=True, slots=True)
class Options:
    """How a network is to be run. `dtype` is of weights and activations: bfloat16, float32 or int8 (int8 weights
    and activations in the linears, bfloat16 or float32 elsewhere). strict: a row's bits depend neither on its
    batch nor on how the prompt was cut. Behind `pages` there are `branch_pages` more, for branches of guesses
    (models/branches.py)."""

    dtype: str
    pages: int
    page_tokens: int
    max_context: int
    threads: int = 1
    strict: bool = True
    branch_pages: int = 0


class Executor(Protocol):
    """Owns the weights and the pages. One call at a time."""

    # Most rows of one `forward`.
    max_rows: int
    # Numbers in the model's tensors, each counted once.
    parameters: int
    # What really runs, in a few words, for the ready box and the metric: "compiled loops (avx512_bf16), strict".
    path: str
    # Whether the promise of Options.strict is kept.
    strict: bool
    # Whether batches may have branches.
    branches: bool

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of the wanted rows, float32 [W, vocab]; keys and values of all rows go to their slots."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """What page `source` holds, `target` holds afterwards, too."""
        ...

    def move(self, slots: Sequence[tuple[int, int]]) -> None:
        """What is kept in the first slot of each pair is kept in the second afterwards, too. None is in both places."""
        ...
