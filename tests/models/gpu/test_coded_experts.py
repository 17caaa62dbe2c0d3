"""Experts stay in the codes they are stored in, and compute what the dense model with the same values computes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig

from kernels import interpreter
from kernels.moe.coded import CodedExperts
from models.batch import Stretch
from models.plain import PlainExecutor
from tests.models.gpu.interpreted import on_cpu, save

sys.path.insert(0, str(Path(__file__).parents[1]))
import parity
import test_gpt_oss
from quantized_writer import WRITTEN
from test_quantized import SPARSE, write_both

pytestmark = pytest.mark.skipif(not interpreter.in_use(), reason="tests/gpu has the same for a GPU")

TOKENS = parity.random_tokens(3, 3)
SIZES = {"num_hidden_layers": 1, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}


def logits_of(executor: object) -> torch.Tensor:
    return parity.run(executor, [Stretch(TOKENS, 0, [3], 0)])


@pytest.mark.parametrize("name", ["awq", "fp8 in blocks", "W8A8", "W4 packed"])
def test_quantised_experts_are_not_made_dense(name: str, tmp_path: Path) -> None:
    quantised, dense = write_both(tmp_path, Qwen3MoeConfig, WRITTEN[name], **SPARSE | SIZES)
    executor = parity.load(quantised, on_cpu)
    experts = executor._layers[0].mlp
    assert isinstance(experts._gate_up, CodedExperts) and isinstance(experts._down, CodedExperts)
    assert "2 linears experts of" in executor.path
    if name == "W8A8":
        return  # Attention rounds what it reads, as the folder's makers did.
    expected = logits_of(parity.load(dense, PlainExecutor, strict=False))
    # Values of random codes are large, and so are logits.
    assert (logits_of(executor) - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.slow
def test_experts_in_mxfp4_are_dense_here(tmp_path: Path) -> None:
    test_gpt_oss.write_coded(tmp_path / "coded", tmp_path / "dense")
    executors = [parity.load(tmp_path / name, on_cpu) for name in ("coded", "dense")]
    assert executors[0].path == executors[1].path and "codes" not in executors[0].path
    assert torch.equal(*map(logits_of, executors))


def test_int8_keeps_experts_in_int8(tmp_path: Path) -> None:
    theirs = save("experts", tmp_path)
    executor = parity.load(tmp_path, on_cpu, "int8")
    layer = next(layer.mlp for layer in executor._layers if hasattr(layer.mlp, "_router"))
    assert layer._gate_up.codes.dtype == torch.int8
    expected = parity.logits_of(theirs, TOKENS)
    assert (logits_of(executor) - expected).abs().mean() <= 0.06 * expected.abs().mean()
