"""GLM-4.5 and GLM-4.7 Flash against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
import routing
from transformers import Glm4MoeConfig, Glm4MoeLiteConfig

from models.config import read_network
from models.sources import ModelError
from models.spec import Attention, Experts, LatentAttention, Mlp

SIZES: dict[str, Any] = {
    "head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "routed_scaling_factor": 1.5,
}
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "as 4.5 Air: biases, half of a head turns": (0, {"attention_bias": True}),
    "as 4.6: norms of q and k": (0, {"attention_bias": True, "use_qk_norm": True}),
    "all of a head turns, groups": (
        0,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 1.0},
         "n_group": 4, "topk_group": 2},
    ),
    "yarn over a quarter of a head": (
        0,
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "partial_rotary_factor": 0.25,
                             "original_max_position_embeddings": 64}},
    ),
    "two shared experts, all layers sparse": (0, {"n_shared_experts": 2, "first_k_dense_replace": 0}),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    seed, changes = VARIANTS[variant]
    routing.check(routing.save_sparse(Glm4MoeConfig, tmp_path, seed, **(SIZES | changes)), tmp_path)


@pytest.mark.slow  # other families' loops are the same
@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    # All experts: rounding must not send a row elsewhere.
    theirs = routing.save_sparse(Glm4MoeConfig, tmp_path, 0, **(SIZES | {"num_experts_per_tok": 8}))
    parity.check_bfloat16(theirs, tmp_path, make)


def test_flash_has_the_layers_of_deepseek_v3(tmp_path: Path) -> None:
    sizes = {name: value for name, value in routing.DEEPSEEK.items() if name != "first_k_dense_replace"}
    kinds = ["dense", "sparse", "sparse"]
    routing.check(routing.save_sparse(Glm4MoeLiteConfig, tmp_path, 0, mlp_layer_types=kinds, **sizes), tmp_path)
    layers = read_network(tmp_path).layers
    assert [type(layer.mlp) for layer in layers] == [Mlp, Experts, Experts]
    assert all(isinstance(layer.attention, LatentAttention) for layer in layers)


def test_the_published_config_is_read(tmp_path: Path) -> None:
    """The fields of GLM-4.5-Air's own config.json."""
    fields = {
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": [151329, 151336, 151338],
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 10944,
        "max_position_embeddings": 131072,
        "model_type": "glm4_moe",
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 46,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "pad_token_id": 151329,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_qk_norm": False,
        "vocab_size": 151552,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))

    network = read_network(tmp_path)

    assert [type(layer.mlp) for layer in network.layers] == [Mlp] + [Experts] * 45
    attention = network.layers[0].attention
    assert isinstance(attention, Attention)
    assert (attention.rope.width, attention.rope.interleaved, attention.qkv.bias) == (64, False, True)
    assert network.eos_token_ids == (151329, 151336, 151338)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor"),  # of 3 dimensions
        ({"n_group": 3}, "n_group"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"mlp_layer_types": ["dense", "sparse", "full"]}, "mlp_layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"scoring_func": "softmax"}, "scoring_func"),
    ],
)
def test_a_field_that_is_not_computed_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    fields = {
        "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 101, **SIZES,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    read_network(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(fields | changes))
    with pytest.raises(ModelError, match=said):
        read_network(tmp_path)
