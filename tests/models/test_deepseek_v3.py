"""DeepSeek-V3 against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
import routing
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config

from models.config import read_network
from models.plain import PlainExecutor
from models.quantized.registry import format_of
from models.sources import ModelError
from models.spec import Experts, LatentAttention, Mlp

SIZES = routing.DEEPSEEK
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (0, {}),
    "q without a low rank": (0, {"q_lora_rank": None}),
    "yarn": (0, {"rope_parameters": YARN}),
    "yarn with two magnitudes": (0, {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 1.3}}),
    "as Kimi K2: one group, yarn without a ramp": (
        0,
        {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
         "rope_parameters": YARN | {"beta_fast": 1.0, "rope_theta": 5e4, "factor": 32.0}},
    ),
    "halves rotated, biases": (0, {"rope_interleave": False, "attention_bias": True}),
    "one group, weights that don't sum to one": (0, {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
    "one expert of one group, no scale": (
        0,
        {"n_group": 8, "topk_group": 1, "num_experts_per_tok": 1, "routed_scaling_factor": 1.0},
    ),
    "two shared experts, all layers sparse": (0, {"n_shared_experts": 2, "first_k_dense_replace": 0}),
    "no shared expert, all layers dense but one": (0, {"n_shared_experts": 0, "first_k_dense_replace": 2}),
    "other epsilon, tied": (0, {"rms_norm_eps": 0.01, "tie_word_embeddings": True}),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    seed, changes = VARIANTS[variant]
    routing.check(routing.save_sparse(DeepseekV3Config, tmp_path, seed, **(SIZES | changes)), tmp_path)


@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    # All experts: rounding must not send a row elsewhere.
    all_of_them = {"num_experts_per_tok": 16, "topk_group": 4}
    parity.check_bfloat16(routing.save_sparse(DeepseekV3Config, tmp_path, 0, **(SIZES | all_of_them)), tmp_path, make)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deepseek_v3")
    routing.save_sparse(DeepseekV3Config, folder, 0, **SIZES)
    return folder


def edit(folder: Path, saved: Path, **changes: Any) -> None:
    config = json.loads((saved / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_layers_that_predict_further_tokens_are_left_unread(saved: Path, tmp_path: Path) -> None:
    """They stand in the file behind the last layer, and are no part of this network."""
    theirs = routing.save_sparse(DeepseekV3Config, tmp_path, 0, **SIZES)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.3.eh_proj.weight"] = torch.full((64, 128), torch.nan)
    tensors["model.layers.3.self_attn.o_proj.weight"] = torch.full((64, 96), torch.nan)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    edit(tmp_path, saved, num_nextn_predict_layers=1)

    executor, tokens = parity.load(tmp_path, PlainExecutor), parity.random_tokens(20, 1)

    logits = parity.run(executor, [parity.Stretch(tokens, 0, [4, 2], 0)])
    parity.assert_close(logits, parity.logits_of(theirs, tokens), "beside further layers")


def test_a_page_holds_one_latent_and_one_rotated_key_a_token(saved: Path) -> None:
    options = parity.Options("bfloat16", 4, 16, 64)
    assert PlainExecutor.page_bytes(read_network(saved), options) == 3 * 16 * (32 + 8) * 2


# The fields of DeepSeek-V3's own config.json, without the quantisation.
PUBLISHED: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def test_the_published_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))

    network = read_network(tmp_path)

    assert [type(layer.mlp) for layer in network.layers] == [Mlp] * 3 + [Experts] * 58
    attention = network.layers[60].attention
    assert isinstance(attention, LatentAttention) and attention.rope.interleaved
    assert attention.scale == pytest.approx(0.1352338, rel=1e-6)  # 192^-½ · (0.1 ln 40 + 1)²
    assert attention.rope.scaling is not None and attention.rope.scaling.attention_factor == 1.0
    assert network.max_context == 163840


def test_kimi_k2_is_one_of_them_also_as_the_text_part_of_a_model_that_sees_images(tmp_path: Path) -> None:
    kimi = PUBLISHED | {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "n_routed_experts": 384}
    scheme = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
    codes = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": scheme}}
    whole = {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "tie_word_embeddings": False,
        "text_config": kimi | {"quantization_config": codes},
    }  # fmt: skip
    networks = []
    for config in (kimi, whole):
        (tmp_path / "config.json").write_text(json.dumps(config))
        networks.append(read_network(tmp_path))
    assert networks[0] == networks[1]
    assert "int4" in format_of(whole).told and format_of(kimi).told == "not quantised"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ({"n_group": 3}, "n_group"),
        ({"topk_group": 5}, "topk_group"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),  # 2 groups of 4
        ({"kv_lora_rank": None}, "kv_lora_rank"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_field_that_is_not_computed_is_named(saved: Path, tmp_path: Path, changes: Any, said: str) -> None:
    edit(tmp_path, saved, **changes)
    with pytest.raises(ModelError, match=said):
        read_network(tmp_path)
