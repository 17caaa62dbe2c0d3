"""Weights coded while a dense folder is loaded: codes near the values, the same numbers for every executor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config

from kernels import interpreter
from models.batch import Stretch
from models.config import read_network
from models.errors import ModelError
from models.executor import Options
from models.plain import PlainExecutor
from models.quantized.at_load import WAYS, CodedWeights, coded, group_of
from models.quantized.stored import StoredPart
from models.weights import Weights
from tests.models.gpu.interpreted import on_cpu

sys.path.insert(0, str(Path(__file__).parent))
import parity
from quantized_writer import WRITTEN
from test_quantized import write_both

TOKENS = parity.random_tokens(3, 3)


def part(weight: torch.Tensor) -> StoredPart:
    return StoredPart("w", "plain", *weight.shape, weight)


@pytest.mark.parametrize("inputs", [128, 96, 40, 33])
def test_every_value_is_within_half_a_step_of_its_code(inputs: int) -> None:
    weight = torch.randn(20, inputs, generator=torch.Generator().manual_seed(inputs))
    weight[3], weight[4, : inputs // 2], weight[5] = 0, 0, weight[5].abs()
    eight = coded(part(weight), "wint8")
    assert eight.kind == "int8" and eight.codes.shape == (20, inputs)
    assert ((eight.dense(torch.float32) - weight).abs() <= weight.abs().amax(1, keepdim=True) / 254 * 1.001).all()
    four = coded(part(weight), "wint4")
    group = group_of(inputs)
    assert four.kind == "int4" and four.codes.shape == (20, -(-inputs // 2)) and four.scales.shape[1] == inputs // group
    grouped = weight.view(20, -1, group)
    span = grouped.amax(2).clamp(min=0) - grouped.amin(2).clamp(max=0)
    # A step is a fifteenth of the span; the zero and the step are rounded, too.
    bound = (span / 15 * 1.05).repeat_interleave(group, 1) + 1e-6
    error = (four.dense(torch.float32) - weight).abs()
    assert (error <= bound).all() and (error <= bound * 0.55).float().mean() > 0.9
    assert not four.dense(torch.float32)[3].any() and not four.dense(torch.float32)[4, : inputs // 2].any()


def load(folder: Path, way: str, dtype: str = "float32"):
    network = read_network(folder)
    options = Options(dtype, pages=8, page_tokens=parity.PAGE_TOKENS, max_context=64, strict=False)
    return network, CodedWeights(Weights(folder), network, way), options


@pytest.mark.parametrize("way", WAYS)
def test_executors_agree_on_the_text_of_the_coded_weights(way: str, tmp_path: Path) -> None:
    parity.save_tiny(Qwen3Config, tmp_path, num_hidden_layers=1, head_dim=16)
    network, weights, options = load(tmp_path, way)
    dense = PlainExecutor(network, Weights(tmp_path), options)
    plain = PlainExecutor(network, weights, options)
    logits, others = (parity.run(each, [Stretch(TOKENS, 0, [3], 0)]) for each in (plain, dense))
    changed = (logits - others).abs().max() / others.abs().max()
    assert (1e-4 if way == "wint8" else 1e-3) < changed < (0.1 if way == "wint8" else 0.6)
    parity.assert_close(parity.run(parity.EXECUTORS["compiled"](network, weights, options),
                                   [Stretch(TOKENS, 0, [3], 0)]), logits, "compiled")  # fmt: skip
    if interpreter.in_use():
        gpu = on_cpu(network, weights, options)
        assert f"{'int8' if way == 'wint8' else 'int4'} codes made dense on the way" in gpu.path
        parity.assert_close(parity.run(gpu, [Stretch(TOKENS, 0, [3], 0)]), logits, "GPU executor")


def test_bytes_are_counted_as_they_are_kept(tmp_path: Path) -> None:
    parity.save_tiny(Qwen3Config, tmp_path, num_hidden_layers=1)
    for way in WAYS:
        network, weights, _ = load(tmp_path, way)
        for linear in (network.layers[0].attention.qkv, network.layers[0].mlp.down):
            made = weights.linear(linear).parts
            kept = [each for one in made for each in (one.codes, one.scales, one.zeros) if each is not None]
            assert weights.coded_bytes(linear) == sum(each.nbytes for each in kept)
        assert weights.coded_bytes(network.head) == 0
        assert weights.linear(network.head).parts[0].kind == "plain"


def test_a_folder_that_is_quantised_is_refused(tmp_path: Path) -> None:
    quantised, _ = write_both(tmp_path, Qwen3Config, WRITTEN["W8A8"], num_hidden_layers=1)
    with pytest.raises(ModelError, match="quantization is wint4, and the folder is compressed-tensors"):
        load(quantised, "wint4")
