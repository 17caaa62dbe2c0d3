"""Llama against transformers, in every shape that models of its kind come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parity
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from models.config import read_network
from models.sources import ModelError
from models.weights import Weights

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"num_key_value_heads": 4},
    "grouped": {},
    "one kv head": {"num_key_value_heads": 1, "head_dim": 24},
    "heads wider than their share": {"head_dim": 32},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one layer": {"num_hidden_layers": 1},
    "another base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "rms_norm_eps": 1e-2},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "llama3 rope": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, **LLAMA3}},
    "yarn": {"rope_parameters": YARN},
    "yarn with magnitudes": {"rope_parameters": {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0}},
    "yarn with a magnitude said": {"rope_parameters": {**YARN, "attention_factor": 0.8, "truncate": False}},
    "yarn with other ends": {"rope_parameters": {**YARN, "beta_fast": 16, "beta_slow": 0.5}},
}


@pytest.mark.shows("Llama, Qwen (hybrids, too), Mistral, DeepSeek, Kimi, GLM, ERNIE, Gemma, gpt-oss families", "tested")
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    parity.check_parity(parity.save_tiny(LlamaConfig, tmp_path, **VARIANTS[variant]), tmp_path)


@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    parity.check_bfloat16(parity.save_tiny(LlamaConfig, tmp_path), tmp_path, make)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_stored_in_half_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    parity.save_tiny(LlamaConfig, tmp_path).to(dtype).save_pretrained(tmp_path)
    assert Weights(tmp_path).take("model.norm.weight", 64).dtype == dtype
    # Loaded again: the model in memory has rounded its rotation, too.
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    parity.check_parity(theirs, tmp_path)


def test_shards_load_as_one_model(tmp_path: Path) -> None:
    theirs = parity.save_tiny(LlamaConfig, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    theirs.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    parity.check_parity(theirs, tmp_path)


@parity.every_executor
def test_parameters_are_counted_once_each(make: parity.MakeExecutor, tmp_path: Path) -> None:
    for changes in ({}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}):
        theirs = parity.save_tiny(LlamaConfig, tmp_path, **changes)
        assert parity.load(tmp_path, make).parameters == sum(p.numel() for p in theirs.parameters())


@parity.every_executor
def test_a_tensor_that_does_not_fit_the_config_is_named(make: parity.MakeExecutor, tmp_path: Path) -> None:
    parity.save_tiny(LlamaConfig, tmp_path)
    for changes, said in (
        ({"intermediate_size": 104}, r"mlp\.gate_proj\.weight has shape"),
        ({"vocab_size": 200}, r"embed_tokens\.weight has shape"),
        ({"num_hidden_layers": 4}, r"model\.layers\.3\..* is missing"),
        ({"attention_bias": True}, r"q_proj\.bias is missing"),
    ):
        with parity.edited_config(tmp_path, **changes), pytest.raises(ModelError, match=said):
            parity.load(tmp_path, make)


def test_the_description_says_what_a_llama_is(tmp_path: Path) -> None:
    parity.save_tiny(LlamaConfig, tmp_path, attention_bias=True, eos_token_id=[7, 8])
    network = read_network(tmp_path)
    attention = network.layers[2].attention
    assert [part.name for part in attention.qkv.parts] == [f"model.layers.2.self_attn.{x}_proj" for x in "qkv"]
    assert [part.outputs for part in attention.qkv.parts] == [64, 32, 32] and attention.qkv.bias
    assert (attention.scale, attention.window, attention.q_norm) == (0.25, 0, None)
    assert (network.max_context, network.eos_token_ids, network.stored_dtype) == (256, (7, 8), "float32")
