"""Steps of few rows as CUDA graphs: one for each bucket of row counts, captured once, replayed with one call.

Rows are filled up to the next bucket. A graph reads inputs that stay in their place (inputs.py) and writes logits to
a place that stays. Which buckets there are is chosen at start, from the rows that drafts make and the memory there is.
Large ones have a second graph, with logits of few rows: a prompt's rows need none but the last one's.
Knows nothing of layers: what is captured is a function of both numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from kernels.device import Device
from kernels.launch import only_compiling
from models.spec import Attention, DeltaNet, Experts, LatentAttention, Layer, Linear, Network

# What graphs and the tensors at their fixed addresses may take: half of what is left free beside pages and weights
# (services/worker/cache/size.py).
ROOM = 1 << 30
BUCKETS = (
    1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256,
    320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048,
)  # fmt: skip
# Rows with logits in the second graph of a larger bucket: as many as there are sequences by default.
FEW = 64


class GraphSizes(NamedTuple):
    """Of a graph: its rows, and those of them that have logits."""

    rows: int
    wanted: int


def choose_buckets(rows: int, row_bytes: int, room: int) -> tuple[int, ...]:
    """Sizes of graphs for steps of up to `rows` rows. A graph needs `row_bytes` for each of its rows; what doesn't fit
    into `room` is left out."""
    wanted = BUCKETS[: bisect_left(BUCKETS, rows) + 1]
    return tuple(bucket for bucket in wanted if bucket * row_bytes <= room)


def row_bytes(network: Network, taps: int, table_width: int) -> int:
    """Bytes that a graph takes for each of its rows: logits, features, and what a layer's linears read and write. An
    upper bound, as if each number had four bytes and a layer kept them all."""
    hidden = network.hidden_size
    widest = max((_numbers(layer) for layer in network.layers), default=0)
    return 4 * (network.head.outputs + taps * hidden + 8 * hidden + widest + table_width)


def _numbers(layer: Layer) -> int:
    attention, mlp = layer.attention, layer.mlp
    if isinstance(attention, Attention):
        numbers = 2 * attention.qkv.outputs + attention.output.outputs
    elif isinstance(attention, DeltaNet):
        # Once more what linears read: between the delta rule and its norm.
        numbers = attention.mixed.outputs + 2 * attention.output.inputs + attention.output.outputs
    else:
        assert isinstance(attention, LatentAttention)
        latents = attention.heads * (2 * attention.latent_dim + attention.rope_dim)
        numbers = _outputs(attention.q, attention.q_down, attention.kv_down, attention.output) + latents
    if isinstance(mlp, Experts):
        one, shared = mlp.experts[0], mlp.shared
        numbers += mlp.router.top_k * (2 * one.gate_up.outputs + one.down.outputs) + mlp.router.experts
        return numbers + (_outputs(shared.gate_up, shared.gate_up, shared.down) if shared else 0)
    return numbers + 2 * mlp.gate_up.outputs + mlp.down.outputs


def _outputs(*linears: Linear | None) -> int:
    return sum(linear.outputs for linear in linears if linear is not None)


class Graphs:
    def __init__(
        self, run: Callable[[GraphSizes], None], buckets: Sequence[int], device: Device, few: int = 0
    ) -> None:
        """`run` starts the kernels of a step of these sizes, whose inputs are in place; it must not wait for the
        device. Inputs must be such that running does no harm. `few`: rows with logits of second graphs; 0: there are
        none."""
        self.buckets, self._few = tuple(buckets), few
        self._replays: dict[GraphSizes, Callable[[], None]] = {}
        # The largest first: smaller ones fit into the memory it took.
        all_sizes = [
            GraphSizes(rows, wanted)
            for rows in reversed(self.buckets)
            for wanted in ((rows, few) if 0 < few < rows else (rows,))
        ]
        with only_compiling():
            # A capture would compile its own kernels one after the other.
            for sizes in all_sizes:
                run(sizes)
        for sizes in all_sizes:
            self._replays[sizes] = device.capture(partial(run, sizes))

    def sizes_of(self, rows: int, wanted: int) -> GraphSizes | None:
        """Of the smallest graph for a step; None: no graph is large enough."""
        place = bisect_left(self.buckets, rows)
        if place == len(self.buckets):
            return None
        bucket = self.buckets[place]
        return GraphSizes(bucket, self._few if wanted <= self._few < bucket else bucket)

    def replay(self, sizes: GraphSizes) -> None:
        self._replays[sizes]()
