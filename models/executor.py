"""What runs a `Network`: the interface between models/ and the owner of the sequences. Three implementations:
models/plain (plain torch, the truth), models/cpu (compiled loops) and models/gpu (Triton kernels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from kernels.cpu_instructions import Instructions
from models.batch import Batch
from models.group import Group
from models.taps import Tap


@dataclass(frozen=True, slots=True)
class Options:
    """How a network is run. `dtype` is of weights and activations: bfloat16, float32 or int8 (int8 weights and
    activations in the linears, bfloat16 or float32 outside of them). strict: a row's bits depend neither on its batch
    nor on how the prompt was cut. After `pages` come `branch_pages` more, for branches of trees (models/branches.py).
    `taps`: what `Output.features` holds, in this order; (): no features. `graph_rows`: rows of the largest step that
    should be a graph, where an executor has graphs."""

    dtype: str
    pages: int
    page_tokens: int
    max_context: int
    threads: int = 1
    strict: bool = True
    branch_pages: int = 0
    taps: tuple[Tap, ...] = ()
    # fp8: keys and values are kept in 8 bits (e4m3, without scales); "": in the dtype of activations.
    kv_dtype: str = ""
    graph_rows: int = 256
    # On a CPU with AMX: its tiles compute bfloat16 and int8.
    amx: bool = True
    # Of compiled loops: a row's bits are those of every CPU that has fused multiply-adds.
    same_bits: bool = False
    # Of a network with states (Network.recurrent): how many sequences have one, and the most rows at the end of a step
    # that may be taken back.
    states: int = 64
    longest_draft: int = 48
    # Where the network is a rank's share (models/shards.py): the ranks. None: there is but one.
    group: Group | None = None

    @property
    def instructions(self) -> Instructions:
        return Instructions(tiles=self.amx, bfloat16=not self.same_bits)


@dataclass(frozen=True, slots=True)
class Output:
    """What one forward pass gives, on the executor's device. The next call may write over it."""

    # Of the wanted rows but those with `states_only`, float32 [Batch.with_logits, vocab].
    logits: torch.Tensor
    # Of all rows, in the order of the tokens of the stretches (Batch.feature_rows): [R, taps · hidden], each row the
    # values of the taps side by side. The dtype is that of activations: float32 where Options.dtype is float32 and on a
    # CPU without bfloat16 instructions, else bfloat16. None without taps.
    features: torch.Tensor | None = None
    # What the head reads of the wanted rows, or would of those with `states_only`, which are last, [W, hidden]: the
    # output of the final norm, in the dtype of activations. None where the network has no head.
    final: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class PageTensor:
    """Memory of the pages: of a layer, of its keys, or of layers that are alike. The first axis is the page."""

    memory: torch.Tensor
    # The axis of key heads, and their number in the whole model, of which a rank has some (models/shards.py:
    # key_heads). 0: there are none (latents), and each rank has all of it.
    axis: int = 0
    heads: int = 0

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of a page in the whole model."""
        shape = list(self.memory.shape[1:])
        if self.axis:
            shape[self.axis - 1] = self.heads
        return tuple(shape)


class Executor(Protocol):
    """Owns the weights and the pages. One call at a time."""

    # The most rows of one `forward`.
    max_rows: int
    # Numbers in the model's tensors, each counted once.
    parameters: int
    # How the model is run, for the ready box and the metric: "compiled loops (avx512_bf16), strict".
    path: str
    # What computes keys and values, in words: two executors of one model and dtype with the same words can go on with
    # each other's pages. The same for all numbers of ranks.
    computed_by: str
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

    def copy_state(self, source: int, target: int) -> None:
        """Copy a state beside pages, with what is kept to roll it back. Of a network that has them."""
        ...

    def page_memory(self) -> Sequence[PageTensor]:
        """The memory of the pages, of all layers in an order that is the same on all ranks."""
        ...

    def move(self, slots: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values from the first slot of each pair to the second, in all layers. No slot is both a
        source and a target."""
        ...


@runtime_checkable
class Fed(Protocol):
    """An executor on a device, which can read there the tokens that a verifier has just chosen."""

    # Whether this network can be fed.
    feeds: bool

    def forward_fed(self, batch: Batch, given: torch.Tensor, fed: int) -> Output:
        """`forward`, but the tokens of the first `fed` rows are places in `given` (int32, on the device), where the ids
        are. A value there that is no id counts as any token."""
        ...


@runtime_checkable
class Contexts(Protocol):
    """An executor of networks with a `context`."""

    max_rows: int

    def store(self, batch: Batch, hidden: torch.Tensor) -> None:
        """Make keys and values of values of the target model [R, hidden_size], one a row, for the slots of the rows:
        chains, whose tokens don't matter."""
        ...


@runtime_checkable
class Chains(Protocol):
    """An executor on a device, which makes several passes of a drafter's network before the host looks at their
    tokens. `forward` returns there before anything is computed."""

    def prepare_chain(self, ids: torch.Tensor | None) -> None:
        """Once, before the others. `ids`: the target's ids of the network's tokens; None: the same."""
        ...

    def start_chain(self, logits: torch.Tensor, hidden: torch.Tensor | None) -> None:
        """Choose the likeliest token of each row of the logits [n, V]. `hidden` [n, H]: what the next pass reads."""
        ...

    def follow_chain(self, batch: Batch) -> None:
        """A pass over the last one's tokens, in place of the batch's, and the choice of the next. One row a sequence,
        for the first sequences of the pass before it."""
        ...

    def fetch_chain(self, passes: int, rows: int) -> list[list[tuple[int, float]]]:
        """Of each of the first `rows` sequences, all tokens (`start_chain` counts as a pass), with their
        probabilities."""
        ...
