"""A linear outside of a network: on every executor what torch says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from models.cpu.executor import CpuExecutor
from models.executor import Options
from models.plain.decoder import PlainExecutor
from models.spec import Linear, Part
from models.weights import Weights

ONE = Linear((Part("fc", 37),), 51)
BIASED = Linear((Part("biased", 37),), 51, bias=True)


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    generator = torch.Generator().manual_seed(1)
    shapes = {"fc.weight": (37, 51), "biased.weight": (37, 51), "biased.bias": (37,)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    return Weights(tmp_path)


@pytest.mark.parametrize("one", [ONE, BIASED], ids=["plain", "biased"])
@pytest.mark.parametrize("executor", [CpuExecutor, PlainExecutor])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2), ("int8", 3e-2)])
def test_it_is_the_product_of_any_number_of_rows(
    weights: Weights, executor: Any, one: Linear, dtype: str, tolerance: float
) -> None:
    options = Options(dtype=dtype, pages=1, page_tokens=8, max_context=8)
    project = executor.projection(one, weights, options, torch.device("cpu"))
    generator = torch.Generator().manual_seed(2)
    for rows in (1, 3, 64, 65, 200):
        x = torch.randn(rows, 51, generator=generator)
        stored = weights.linear(one)
        bias = stored.bias(torch.float32)
        expected = x @ stored.dense(torch.float32).T + (0 if bias is None else bias)
        found = project(x).float()
        assert found.shape == (rows, 37)
        assert (found - expected).norm() <= tolerance * expected.norm()
