"""Tensors that hold a linear of all experts, as gpt-oss has them, and what one expert's part is of them.

    NAME          [experts, inputs, outputs]                  floats; or [experts, outputs, inputs] (Stack.whole)
    NAME_blocks   [experts, outputs, inputs / 32, 16] bytes   mxfp4: two codes a byte, that of the even input low
    NAME_scales   [experts, outputs, inputs / 32] bytes       of a block of 32 inputs: an exponent of two, plus 127
    NAME_bias     [experts, outputs]

Outputs of several parts may stand in turns: gate, up, gate, up. No torch until values are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from models.errors import ModelError
from models.quantized.format import FLOATS, Layout, WantedFormat
from models.spec import Linear, Part, Stack

if TYPE_CHECKING:
    import torch

    from models.quantized.stored import StoredPart

BLOCK = 32


def stacked_layout(part: Part, stack: Stack, linear: Linear, names: Collection[str]) -> Layout:
    """Its tensors. Raises `ModelError`."""
    count, outputs, inputs = stack.count, part.outputs * stack.step, linear.inputs
    shape = (count, stack.whole, inputs) if stack.whole else (count, inputs, outputs)
    layout = {"values": WantedFormat(stack.name, (shape,), FLOATS)}
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


def coded_stack_bytes(part: Part, stack: Stack, linear: Linear, names: Collection[str]) -> int:
    """Of codes and scales; 0: it is in floats."""
    numbers = part.outputs * linear.inputs
    return numbers // 2 + numbers // BLOCK if f"{stack.name}_blocks" in names else 0


def stacked_part(part: Part, stack: Stack, layout: Layout, read: Callable[..., torch.Tensor]) -> StoredPart:
    """`read` gives a slice of a tensor's first axis, by its name. Raises `ModelError`."""
    from models.quantized.stored import StoredPart

    def one(key: str) -> Any:
        return read(layout[key].name, slice(stack.index, stack.index + 1))[0]

    rows = slice(stack.first, None, stack.step)
    if "values" in layout:
        values = one("values")[stack.first :][: part.outputs] if stack.whole else one("values").T[rows]
        values = values.contiguous()
        return StoredPart(part.name, "plain", part.outputs, values.shape[1], values)
    codes, scales = one("blocks")[rows].flatten(1), one("scales")[rows]
    if bool((scales == 255).any()):
        what = f"tensor {layout['scales'].name} has a value that is not finite"
        raise ModelError(what, "fetch the folder again")
    inputs = 2 * codes.shape[1]
    return StoredPart(part.name, "mxfp4", part.outputs, inputs, codes, scales, group_size=BLOCK)


def stacked_bias(stack: Stack, read: Callable[..., torch.Tensor]) -> torch.Tensor:
    bias = read(f"{stack.name}_bias", slice(stack.index, stack.index + 1))[0]
    return bias[stack.first :: stack.step]

