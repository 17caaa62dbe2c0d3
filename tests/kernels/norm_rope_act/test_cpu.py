"""The compiled per-row loops against plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.norm_rope_act import reference
from kernels.norm_rope_act.cpu import add_norm, embed, silu_gate

# bfloat16 results are the float32 ones rounded: half a unit in the last of 8 bits, and a little for ties.
TOLERANCE = {torch.bfloat16: 0.005, torch.float32: 2e-6}
DTYPES = list(TOLERANCE)


def flat(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).view(-1).numpy()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 576), (5, 64), (3, 24)])
def test_add_norm_equals_the_reference(rows: int, hidden: int, dtype: torch.dtype) -> None:
    residual, delta = torch.randn(rows, hidden), torch.randn(rows, hidden).to(dtype)
    weight = torch.randn(hidden)
    out = torch.full((rows, hidden), torch.nan, dtype=dtype)
    for change in (None, delta):
        expected_residual, expected = reference.add_norm(residual, change, weight, 1e-5)
        address = 0 if change is None else change.data_ptr()
        add_norm(flat(residual), address, flat(weight), 1e-5, flat(out), rows, hidden)
        torch.testing.assert_close(residual, expected_residual)
        torch.testing.assert_close(out.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_silu_gate_equals_the_reference(dtype: torch.dtype, scale: float) -> None:
    gate_up = (torch.randn(7, 2 * 72) * scale).to(dtype)
    out = torch.full((7, 72), torch.nan, dtype=dtype)
    silu_gate(gate_up.data_ptr(), flat(out), 7, 72)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.float(), reference.silu_gate(gate_up), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embed_takes_the_rows_of_the_tokens(dtype: torch.dtype) -> None:
    table, out = torch.randn(10, 16).to(dtype), np.zeros(3 * 16, np.float32)
    embed(np.array([7, 0, 7], np.int32), flat(table), out, 3, 16)
    assert torch.equal(torch.from_numpy(out).view(3, 16), table[[7, 0, 7]].float())


def test_bfloat16_rounds_as_torch_does() -> None:
    values = torch.cat([torch.randn(1000), torch.tensor([1.00390625, 1.01171875, -1.00390625, 0.0, 1e-40])])
    out = torch.empty(len(values), dtype=torch.bfloat16)
    # A norm with weight 1 of a row of equal squares only scales: here by a power of two, which is exact.
    for i, value in enumerate(values.tolist()):
        table, row = np.array([value], np.float32), np.zeros(1, np.float32)
        embed(np.zeros(1, np.int32), table, row, 1, 1)
        add_norm(row, 0, np.array([abs(value)], np.float32), 0.0, flat(out[i : i + 1]), 1, 1)
    expected = (torch.sign(values) * values.abs()).bfloat16()
    near = (out.float() - expected.float()).abs() <= expected.float().abs() * 2**-8
    assert near[values.abs() > 1e-18].all()
