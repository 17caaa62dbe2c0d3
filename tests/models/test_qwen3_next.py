"""Qwen3-Next against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
import routing
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, PreTrainedModel, Qwen3NextConfig

from models.check import check_model
from models.config import read_network
from models.shards import shard
from models.sources import ModelError
from models.spec import Attention, DeltaNet, Experts, Mlp, Network

SIZES: dict[str, Any] = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 24, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases, a dense layer, one key head a value head, a longer convolution": {
        "attention_bias": True, "mlp_only_layers": [1], "linear_num_key_heads": 4, "linear_conv_kernel_dim": 5,
        "norm_topk_prob": False, "partial_rotary_factor": 0.5, "tie_word_embeddings": True,
    },
}  # fmt: skip


def save(config: type[PreTrainedConfig], folder: Path, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Norms whose weights are stored less one are about one: larger ones make errors of float32 larger, theirs and
    ours."""
    theirs = routing.save_sparse(config, folder, seed, **({"initializer_range": 0.07} | changes))
    noise = torch.Generator().manual_seed(5)
    for name, parameter in theirs.named_parameters():
        if "norm" in name and "linear_attn.norm" not in name:
            torch.nn.init.normal_(parameter, 0.0, 0.3, generator=noise)
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    routing.check(save(Qwen3NextConfig, tmp_path, **(SIZES | VARIANTS[variant])), tmp_path)


@pytest.mark.slow
@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    # All experts: rounding must not send a row elsewhere.
    theirs = save(Qwen3NextConfig, tmp_path, **(SIZES | {"num_experts_per_tok": 8}))
    parity.check_bfloat16(theirs, tmp_path, make)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_next")
    save(Qwen3NextConfig, folder, **SIZES)
    return folder


def read(saved: Path, folder: Path, without: tuple[str, ...] = (), **changes: Any) -> Network:
    config = json.loads((saved / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in without}))
    return read_network(folder)


def test_each_fourth_layer_has_attention_where_the_config_names_none(saved: Path, tmp_path: Path) -> None:
    network = read(saved, tmp_path, ("layer_types",), num_hidden_layers=8, mlp_only_layers=[2])
    kinds = [type(layer.attention) for layer in network.layers]
    assert kinds == 2 * [*3 * [DeltaNet], Attention] and network.recurrent
    assert [type(layer.mlp) for layer in network.layers] == [Experts, Experts, Mlp, *5 * [Experts]]


def test_the_block_for_further_tokens_is_no_part_of_the_model(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    tensors = load_file(saved / "model.safetensors")
    block = {f"mtp.{name}": tensors[f"model.{name}"].clone() for name in ("norm.weight", "embed_tokens.weight")}
    save_file(tensors | block, tmp_path / "model.safetensors", {"format": "pt"})
    assert check_model(tmp_path).parameters == check_model(saved).parameters


def test_ranks_are_refused_by_name(saved: Path) -> None:
    network = read_network(saved)
    with pytest.raises(ModelError, match="gated delta nets aren't split"):
        shard(network, 0, 2)


@pytest.mark.parametrize("name", ["linear_attn.A_log", "linear_attn.conv1d.weight", "mlp.shared_expert_gate.weight"])
def test_a_tensor_that_is_missing_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    routing.check_that_it_is_missed(f"model.layers.2.{name}", saved, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["linear_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 3}, "full_attention in one layer at least"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_a_field_that_is_not_computed_is_named(
    saved: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        read(saved, tmp_path, **changes)
