"""What tests of kernels share: one tolerance per dtype, memory that shows what was not written or not masked,
and compilation ahead of time.

A kernel is compared with plain torch in float32, never with another kernel.
"""

from __future__ import annotations

import torch

from kernels import interpreter

# Of the inputs' dtype, absolute and relative, for outputs of the order of 1.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def device() -> torch.device:
    """Where the fused kernels run in this process: a GPU, or the interpreter on the CPU."""
    return torch.device("cpu" if interpreter.in_use() else "cuda")


def assert_close(out: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    """`dtype`: what the kernel read and wrote; the output's own if not given. NaN never passes."""
    tolerance = TOLERANCE[dtype or out.dtype]
    torch.testing.assert_close(out.float().cpu(), reference.float().cpu(), rtol=tolerance, atol=tolerance)


def assert_same_bits(one: torch.Tensor, other: torch.Tensor) -> None:
    assert one.dtype == other.dtype and one.shape == other.shape
    different = (one.contiguous().view(torch.uint8) != other.contiguous().view(torch.uint8)).sum().item()
    assert different == 0, f"{different} of {one.numel() * one.element_size()} bytes differ"


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device | str | None = None) -> torch.Tensor:
    """NaN everywhere, or the largest number of an integer dtype: what isn't written shows, what is read spreads."""
    value = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max
    return torch.full(shape, value, dtype=dtype, device=device or globals()["device"]())


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same on every machine: drawn on the CPU in float32."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype).to(device())
