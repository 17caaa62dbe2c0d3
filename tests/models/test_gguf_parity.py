"""GGUF files of every family we read, made from models of transformers: the folder they become computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_writer as writer
import numpy as np
import parity
import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from models.gguf import GgufError, GgufFile
from models.gguf_folder import convert

# Hugging Face's names, shortened, and what GGUF files call the same.
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, tuple[str, type, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", LlamaConfig, {}, {}),
    "llama, biases": ("llama", LlamaConfig, {"attention_bias": True, "mlp_bias": True}, {}),
    "llama, tied": ("llama", LlamaConfig, {"tie_word_embeddings": True}, {}),
    "qwen2": ("qwen2", Qwen2Config, {}, {}),
    "qwen2, yarn": (
        "qwen2",
        Qwen2Config,
        {"rope_parameters": YARN},
        {
            "rope.freq_base": 1e6,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "qwen3, heads wider than their share": ("qwen3", Qwen3Config, {"head_dim": 32}, {}),
}


def save_gguf(path: Path, case: str) -> PreTrainedModel:
    """A model of transformers with weights that bfloat16 can hold, and its file."""
    architecture, config_class, changes, metadata = CASES[case]
    theirs = parity.save_tiny(config_class, path.parent / "theirs", vocab_size=writer.VOCAB, **changes)
    for parameter in theirs.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    config = theirs.config
    sizes = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    if architecture == "qwen3":
        sizes |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    writer.write_gguf_of(path, architecture, tensors_of(theirs), sizes | metadata)
    return theirs


def tensors_of(theirs: PreTrainedModel) -> dict[str, np.ndarray]:
    named: dict[str, np.ndarray] = {}
    for name, parameter in theirs.named_parameters():  # a tied head is named once
        start = ""
        if name.startswith("model.layers."):
            _, _, index, name = name.split(".", 3)
            start = f"blk.{index}."
        what, _, kind = name.rpartition(".")
        named[f"{start}{NAMES[what]}.{kind}"] = parameter.detach().numpy()
    return named


@pytest.mark.parametrize("case", CASES)
def test_a_file_computes_what_its_model_computes(case: str, tmp_path: Path) -> None:
    theirs = save_gguf(tmp_path / "tiny.gguf", case)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(GgufFile(tmp_path / "tiny.gguf"), folder)
    parity.check_parity(theirs, folder, {"plain": parity.EXECUTORS["plain"]})


def test_a_mixture_of_experts_is_refused_by_name(tmp_path: Path) -> None:
    writer.write_tiny_gguf(tmp_path / "tiny.gguf", **{"general.architecture": "qwen3moe"})
    with pytest.raises(GgufError, match="qwen3moe"):
        convert(GgufFile(tmp_path / "tiny.gguf"), tmp_path)
