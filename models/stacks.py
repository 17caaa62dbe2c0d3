"""Tensors that hold a linear of all experts, as gpt-oss has them, and what one expert's part is of them.

    NAME          [experts, inputs, outputs]                  floats
    NAME_blocks   [experts, outputs, inputs / 32, 16] bytes   mxfp4: two codes a byte, that of the even input low
    NAME_scales   [experts, outputs, inputs / 32] bytes       of a block of 32 inputs: an exponent of two, plus 127
    NAME_bias     [experts, outputs]

Outputs of several parts may stand in turns: gate, up, gate, up. mxfp4 is made dense, without loss in bfloat16. No torch
until values are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from models.errors import ModelError
from models.quantized.format import FLOATS, Layout, Matrix, WantedFormat
from models.spec import Linear, Part, Stack

if TYPE_CHECKING:
    import torch

BLOCK = 32
# The numbers that codes 0 to 7 stand for; those of 8 to 15 are the same below zero.
_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def stacked_layout(part: Part, stack: Stack, linear: Linear, names: Collection[str]) -> Layout:
    """Its tensors. Raises `ModelError`."""
    count, outputs, inputs = stack.count, part.outputs * stack.step, linear.inputs
    layout = {"values": WantedFormat(stack.name, ((count, inputs, outputs),), FLOATS)}
    if f"{stack.name}_blocks" in names:
        if inputs % BLOCK:
            what = f"{stack.name}_blocks is of {inputs} inputs, no multiple of {BLOCK}"
            raise ModelError(what, "such packing is not read")
        blocks = (count, outputs, inputs // BLOCK)
        layout = {
            "blocks": WantedFormat(f"{stack.name}_blocks", ((*blocks, BLOCK // 2),), ("U8",)),
            "scales": WantedFormat(f"{stack.name}_scales", (blocks,), ("U8",)),
        }
    if linear.bias:
        layout["bias"] = WantedFormat(f"{stack.name}_bias", ((count, outputs),), FLOATS)
    return layout


def stacked_weight(
    part: Part, stack: Stack, layout: Layout, read: Callable[..., torch.Tensor]
) -> torch.Tensor:  # [outputs, inputs]
    """`read` gives a slice of a tensor's first axis, by its name."""

    def one(key: str) -> Any:
        return read(layout[key].name, slice(stack.index, stack.index + 1))[0]

    rows = slice(stack.first, None, stack.step)
    if "values" in layout:
        return one("values").T[rows].contiguous()
    return _dense(Matrix(part.name, part.outputs, 0), one("blocks")[rows], one("scales")[rows])


def stacked_bias(stack: Stack, read: Callable[..., torch.Tensor]) -> torch.Tensor:
    bias = read(f"{stack.name}_bias", slice(stack.index, stack.index + 1))[0]
    return bias[stack.first :: stack.step]


def _dense(matrix: Matrix, blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[outputs, groups, 16] and [outputs, groups] -> [outputs, inputs] bfloat16."""
    import torch

    from models.quantized.codes import finite

    numbers = torch.tensor([*_NUMBERS, *(-number for number in _NUMBERS)])
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(2)  # [outputs, groups, 32]
    factors = finite(matrix, "scales", torch.exp2(scales.float() - 127))
    return (numbers[codes.long()] * factors[..., None]).flatten(1).to(torch.bfloat16)
