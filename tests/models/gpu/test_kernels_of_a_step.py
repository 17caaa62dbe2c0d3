"""Which kernels a step starts. Each takes a few microseconds, and on a small model all of them most of the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.launch import listing
from models.batch import Stretch, make_batch
from models.config import read_network
from models.executor import Options
from models.gpu.executor import GpuExecutor
from models.weights import Weights
from tests.models.gpu.interpreted import save
from tests.tiny_folder import write_tiny_model

SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2 135M": {
        "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
    },
    "Llama 8B": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    },
}  # fmt: skip
# Where a weight's K is cut in ranges, the kernel behind it adds them.
LAYER = ["add_norm", "linear", "rotate_and_store", "attend", "linear", "add_norm", "linear", "linear"]


EXPERTS = ["linear", "route", "place", "expert_linear", "expert_linear", "combine"]
LATENT = [
    "add_norm", "linear", "norm", "linear", "linear_by_head", "linear", "rotate_and_store_latent", "attend",
    "linear_by_head", "linear", "add_norm",
]  # fmt: skip
# Of families, whose tiny models have no ranges.
LAYERS = {
    "sinks, experts with biases": [*LAYER[:-2], *EXPERTS],
    "latent attention, experts in groups": [*LATENT, "linear", "route", "linear", "linear", *EXPERTS[2:]],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_of_few_rows_has_these_kernels_and_no_more(shape: str, tmp_path: Path) -> None:
    """On sm_90, for which there are measured tiles."""
    folder = write_tiny_model(tmp_path / "model", hollow=True, num_hidden_layers=1, **SHAPES[shape])
    for rows in (1, 16):
        # So small a vocabulary's head is cut in ranges, which nothing behind it adds.
        assert kernels_of(folder, rows) == ["embed", *LAYER, "norm_wanted", "linear", "add_ranges"]


@pytest.mark.parametrize("family", LAYERS)
def test_a_layer_of_a_family_has_these_kernels_and_no_more(family: str, tmp_path: Path) -> None:
    save(family, tmp_path)
    layer, around = LAYERS[family], ["norm_wanted", "linear"]
    assert kernels_of(tmp_path, 1)[-len(layer) - 2 :] == [*layer, *around]


def kernels_of(folder: Path, rows: int) -> list[str]:
    options = Options("bfloat16", pages=2, page_tokens=32, max_context=64)
    with listing(90) as launched, torch.inference_mode():
        executor = GpuExecutor(read_network(folder), Weights(folder), options, device="cpu", graphs=False)
        executor.forward(make_batch([Stretch([1], 0, [0], 0)] * rows, 32))
        return [each.kernel.__name__.removesuffix("_kernel") for each in launched]
