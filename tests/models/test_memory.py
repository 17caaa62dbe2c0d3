"""What is counted is what is there: weights that the GPU executor holds, whatever format they came in."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from kernels import interpreter
from models.config import read_network
from models.executor import Options
from models.memory import NUMBER_BYTES, fixed_bytes, kept_by, row_bytes, weight_bytes
from models.weights import Weights
from tests.models.gpu.interpreted import FAMILIES, HYBRIDS, on_cpu, save

sys.path.insert(0, str(Path(__file__).parent))
from quantized_writer import WRITTEN
from test_quantized import write_both

# What an executor holds that is no weight.
_NOT_WEIGHTS = {"_keys", "_values", "_latents", "_memory", "_scratch", "_cos", "_sin", "_spec", "k_scales", "v_scales"}


def held(thing: Any, seen: dict[int, int]) -> dict[int, int]:
    """Bytes of every storage under the thing, each once."""
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
    elif isinstance(thing, list | tuple):
        for each in thing:
            held(each, seen)
    elif type(thing).__module__.startswith(("models.gpu", "kernels.moe", "kernels.delta_rule")):
        names = [*getattr(thing, "__dict__", {}), *getattr(type(thing), "__slots__", ())]
        for name in names:
            if name not in _NOT_WEIGHTS:
                held(getattr(thing, name), seen)
    return seen


def counted_and_held(folder: Path, dtype: str) -> tuple[int, int]:
    network, weights = read_network(folder), Weights(folder)
    executor = on_cpu(network, weights, Options(dtype, pages=2, page_tokens=16, max_context=32))
    parts = [getattr(executor, name) for name in ("_embedding", "_head", "_norm", "_layers")]
    kept = kept_by(network, weights, dtype, codes_stay=True)
    return weight_bytes(network, kept), sum(held(parts, {}).values())


@pytest.mark.skipif(not interpreter.in_use(), reason="there is a GPU")
@pytest.mark.parametrize("dtype", NUMBER_BYTES)
@pytest.mark.parametrize("name", FAMILIES | HYBRIDS)
def test_weights_are_counted_as_the_gpu_executor_keeps_them(name: str, dtype: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    counted, there = counted_and_held(tmp_path, dtype)
    assert 0.99 * there <= counted <= 1.01 * there


@pytest.mark.skipif(not interpreter.in_use(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["awq", "fp8 in blocks", "W8A8", "gptq 4 bits asymmetric"])
def test_a_quantised_folder_is_not_counted_as_a_dense_one(name: str, tmp_path: Path) -> None:
    written = WRITTEN[name]
    quantised, dense = write_both(tmp_path, LlamaConfig, written)
    counted, there = counted_and_held(quantised, "bfloat16")
    assert 0.95 * there <= counted <= 1.1 * there
    assert counted < 0.8 * counted_and_held(dense, "bfloat16")[0]


def test_a_row_and_what_is_fixed_grow_with_what_they_are_made_of(tmp_path: Path) -> None:
    save("llama", tmp_path)
    network = read_network(tmp_path)
    row = row_bytes(network, 2)
    # Logits are float32, and the most of it in a model with a large vocabulary.
    wider = replace(network, head=replace(network.head, parts=(replace(network.head.parts[0], outputs=100_101),)))
    assert row_bytes(wider, 2) - row == 4 * 100_000
    assert row_bytes(network, 4) > row and row_bytes(network, 2, taps=3) == row + 3 * 64 * 2
    width = network.layers[0].attention.rope.width
    assert fixed_bytes(network, 2000, 8) - fixed_bytes(network, 1000, 8) == 1000 * width * 4
