"""A gated delta net, sequence by sequence and row by row. Knows nothing of the rest of the layer.

What is kept of a sequence: its state behind the last settled row, and the inputs of the rows around it, at position
modulo their number (kernels/delta_rule/README.md).
"""

from __future__ import annotations

import torch

from kernels.delta_rule.reference import Memory, Net, advance
from models.batch import Batch
from models.executor import Options, PageTensor
from models.plain.parts import PlainLinear, PlainNorm, dtype_of
from models.spec import DeltaNet
from models.states import States
from models.weights import Weights


class PlainDeltaNet:
    """Owns the states of one layer. Has no pages."""

    def __init__(self, spec: DeltaNet, weights: Weights, options: Options, device: str) -> None:
        self._spec = spec
        self._mixed = PlainLinear(spec.mixed, weights, options, device)
        self._output = PlainLinear(spec.output, weights, options, device)
        self._norm = PlainNorm(spec.norm, weights, options, device)
        convolution, decay, bias = (weights.take(name, *shape).float() for name, shape in spec.tensors.items())
        self._net = Net(
            spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim,
            convolution[:, 0].T.contiguous().to(device), decay.to(device), bias.to(device),
        )  # fmt: skip
        self._table = States(options.states, options.longest_draft)
        shape = options.states, spec.rows_kept(options.longest_draft), spec.kept
        self._memory = Memory(
            torch.zeros(options.states, spec.value_heads, spec.key_dim, spec.value_dim, device=device),
            torch.zeros(shape, dtype=dtype_of(options), device=device),
        )

    @staticmethod
    def page_bytes(spec: DeltaNet, options: Options) -> int:
        return 0

    def copy_page(self, source: int, target: int) -> None: ...

    def copy_state(self, source: int, target: int) -> None:
        self._table.copy(source, target)
        self._memory.copy(source, target)

    def page_memory(self) -> list[PageTensor]:
        return []

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """x [R, hidden] -> [R, hidden]."""
        spec = self._spec
        mixed = self._mixed(x)
        read = torch.empty(len(x), spec.value_heads, spec.value_dim, device=x.device)
        for first, count, *places in self._table.follow(batch).tolist():
            rows = slice(first, first + count)
            read[rows] = self._run(mixed[rows, : spec.kept], *places)
        gate = mixed[:, spec.kept :].float().view_as(read)
        return self._output((self._norm(read).float() * torch.nn.functional.silu(gate)).flatten(1).to(x.dtype))

    def _run(self, new: torch.Tensor, index: int, start: int, begin: int, settled: int) -> torch.Tensor:
        """What the new rows read, [n, heads, value_dim]."""
        if start == 0:
            self._memory.states[index] = 0
        inputs = torch.cat([self._kept(index, begin, start), new])  # row i is at position begin - taps + 1 + i
        state, read = self._memory.states[index], []
        for position in range(begin, start + len(new)):
            at = position - begin
            state, out = advance(self._net, state, inputs[at : at + self._spec.taps])
            if position >= start:
                read.append(out)
            if position + 1 == settled:
                self._memory.states[index] = state
        self._keep(index, start, new)
        return torch.stack(read)

    def _kept(self, index: int, begin: int, start: int) -> torch.Tensor:
        """Inputs of the positions before `start`, as far as the row at `begin` looks back; zeros before the text."""
        ring = self._memory.inputs[index]
        first = begin - self._spec.taps + 1
        found = ring[torch.arange(first, start, device=ring.device) % len(ring)]
        found[: max(0, -first)] = 0
        return found

    def _keep(self, index: int, start: int, new: torch.Tensor) -> None:
        ring = self._memory.inputs[index]
        end = start + len(new)
        last = min(len(new), len(ring))
        ring[torch.arange(end - last, end, device=ring.device) % len(ring)] = new[-last:]
