"""A gated delta net's ops: the linears around kernels/delta_rule/cpu.py.

    normed -mixed-> mixed -delta rule, norm, gate-> attended -output(+)-> residual
"""

from __future__ import annotations

import torch

from kernels.cpu_program import Op
from kernels.delta_rule.cpu import delta_ops, space_bytes
from kernels.delta_rule.reference import Memory, Net
from kernels.linear.cpu import STORE, Rows
from models.cpu.builder import ModelBuilder
from models.spec import DeltaNet, Norm


def delta_net(builder: ModelBuilder, one: DeltaNet, end: Norm | None) -> list[Op]:
    """From the normed rows to the residual."""
    options, size = builder.options, builder.dtype.itemsize
    convolution, decay, bias = (builder.weights.take(name, *shape).float() for name, shape in one.tensors.items())
    net = Net(
        one.key_heads, one.value_heads, one.key_dim, one.value_dim, convolution[:, 0].T.contiguous(), decay,
        bias.contiguous(),
    )  # fmt: skip
    memory = Memory(
        torch.zeros(options.states, one.value_heads, one.key_dim, one.value_dim),
        torch.zeros(options.states, one.rows_kept(options.longest_draft), one.kept, dtype=builder.dtype),
    )
    builder.memories.append(memory)
    mixed = Rows(builder.shared("mixed", one.mixed.outputs).address, one.mixed.outputs * size)
    out = Rows(builder.attended[0].address, one.output.inputs * size)
    space = builder.shared_space(space_bytes(net))
    return [
        builder.linear(builder.pack(one.mixed), builder.normed, mixed, builder.dtype, STORE),
        *delta_ops(net, memory, builder.norm_weight(one.norm), one.norm.epsilon, mixed, out, space),
        *builder.quantize(builder.attended, one.output.inputs),
        builder.add(builder.pack(one.output), builder.attended, end),
    ]
