"""How a Triton kernel is started, and the small plain functions that sizes come from.

A launch allocates nothing and looks at no data: what varies from step to step (how many rows, which pages) is
read by the kernels from tensors of a fixed size, so a launch can be captured in a CUDA graph and replayed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from kernels import interpreter

# Multiprocessors that the interpreter pretends to have: few, so that a persistent program takes several items.
INTERPRETED_MULTIPROCESSORS = 3

_compiled: dict[tuple[Any, ...], Any] = {}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that is not under n."""
    return max(least, 1 << max(n - 1, 0).bit_length())


@lru_cache
def multiprocessors(device: torch.device) -> int:
    if interpreter.in_use():
        return INTERPRETED_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache
def architecture(device: torch.device) -> int:
    """90 for compute capability 9.0. The interpreter counts as the oldest we compile for."""
    if interpreter.in_use():
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    warps: int = 4,
    stages: int = 2,
    fp_fusion: bool = True,
    **constants: Any,
) -> None:
    """Start `kernel` with `args`, in the order of its signature, and its constexprs by name. Without `fp_fusion`
    a product is rounded before something is added to it.

    The compiled kernel is kept by what it was specialised for: the arguments' types, whether pointers and integers
    are multiples of 16, and whether an integer is 1.
    """
    grid = (*grid, 1, 1)[:3]
    if interpreter.in_use():
        interpreter.mend_rows()
        interpreter.mend_bfloat16()
        interpreter.mend_patching()
        kernel[grid](*args, **constants)
        return
    key = (kernel, args[0].device.index, warps, stages, fp_fusion, *constants.items(), *map(kind, args))
    found = _compiled.get(key)
    if found is None:
        options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": fp_fusion}
        compiled = kernel.warmup(*args, **constants, **options, grid=grid)
        in_order = tuple(constants[name] for name in kernel.arg_names if name in constants)
        found = _compiled[key] = (compiled, in_order)
    compiled, in_order = found
    compiled[grid](*args, *in_order)


def kind(arg: Any) -> Any:
    """What Triton compiles another kernel for. Two arguments of one kind may share a compiled kernel."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() % 16 == 0
    if isinstance(arg, int):
        return type(arg), arg == 1, arg % 16 == 0, -(2**31) <= arg < 2**31, arg < 2**63
    return type(arg)
