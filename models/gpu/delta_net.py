"""A gated delta net of a layer on a GPU: its linears, and the kernels between them. What is run of each sequence is in
the step's table (models/states.py)."""

from __future__ import annotations

import torch

from kernels.delta_rule.fused import delta_rule, norm_gate
from kernels.delta_rule.reference import Memory, Net
from kernels.gemm.ranges import Product
from models.gpu.inputs import Step
from models.gpu.linears import GpuLinear, make_linear
from models.gpu.place import Place
from models.gpu.scratch import Scratch
from models.spec import DeltaNet


class GpuDeltaNet:
    """Owns the states of its layer. Has no pages."""

    def __init__(self, spec: DeltaNet, place: Place) -> None:
        self._spec, options = spec, place.options
        self._mixed, self._output = make_linear(spec.mixed, place), make_linear(spec.output, place)
        taken = (place.weights.take(name, *shape).float() for name, shape in spec.tensors.items())
        convolution, decay, bias = (each.to(place.device) for each in taken)
        self._net = Net(
            spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim, convolution[:, 0].T.contiguous(),
            decay.contiguous(), bias.contiguous(),
        )  # fmt: skip
        self._norm = place.norm(spec.norm)
        states = torch.zeros(options.states, spec.value_heads, spec.key_dim, spec.value_dim, device=place.device)
        shape = options.states, spec.rows_kept(options.longest_draft), spec.kept
        self._memory = Memory(states, torch.zeros(shape, dtype=place.dtype, device=place.device))
        self.linears: list[GpuLinear] = [self._mixed, self._output]

    def share(self, scratch: Scratch) -> None:
        """Memory that layers use in turn."""
        self._scratch = scratch

    def copy_state(self, source: int, target: int) -> None:
        self._memory.copy(source, target)

    def __call__(self, x: torch.Tensor, step: Step) -> Product:
        """x [R, hidden] -> [R, hidden]; the states of the step's sequences go on."""
        spec, mixed = self._spec, self._mixed(x)
        read = self._scratch.read(step.rows, spec.value_heads, spec.value_dim)
        assert step.states is not None
        delta_rule(self._net, self._memory, mixed, step.states, read)
        return self._output.product(norm_gate(read, mixed[:, spec.kept :], self._norm, spec.norm.epsilon))
