"""A network that is split over ranks computes what the whole one does, and reads no more than it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parity
import pytest
import ranks
import routing
import torch
from test_quantized import LATENT, SPARSE
from transformers import (
    DeepseekV3Config,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from models.batch import Stretch

TOKENS = parity.random_tokens(70, 5)
DENSE: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama, tied, biases": (LlamaConfig, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama, 3 key heads": (LlamaConfig, {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72}),
    "llama, 1 key head": (LlamaConfig, {"num_key_value_heads": 1}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
    "mistral": (MistralConfig, {"sliding_window": 20, "head_dim": 16}),
    "ernie": (Ernie4_5Config, {"head_dim": 16}),
}
MOE: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "qwen3_moe": (Qwen3MoeConfig, SPARSE | {"norm_topk_prob": True}),
    "deepseek": (DeepseekV3Config, LATENT | {"n_shared_experts": 2}),
    "ernie_moe": (Ernie4_5_MoeConfig, {"head_dim": 16, "moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 24,
                                       "moe_num_shared_experts": 1, "moe_layer_start_index": 1}),
}  # fmt: skip


def texts(executor: Any) -> tuple[torch.Tensor, list[int]]:
    """Logits of a prompt in two chunks beside another sequence, and a greedy text."""
    pages = parity.Pages()
    first, second = pages.take(70), pages.take(70)
    parity.run(executor, [Stretch(TOKENS[:30], 0, first, 30)])
    logits = parity.run(executor, [Stretch(TOKENS[30:], 30, first, 0), Stretch(TOKENS[::-1], 0, second, 60)])
    return logits, parity.greedy(executor, pages.take(40), TOKENS[:12], 24)


def check(folder: Path, count: int, make: parity.MakeExecutor, whole: parity.MakeExecutor | None = None) -> None:
    expected, text = texts(parity.load(folder, whole or make))
    assert expected.abs().max() > 0.5
    with ranks.split(folder, count, make) as split:
        logits, said = texts(split)
    assert logits.shape == expected.shape
    assert (logits - expected).abs().max() <= parity.TOLERANCE
    assert said == text


@parity.every_executor
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", DENSE)
def test_a_split_dense_model_gives_the_logits_and_the_text_of_the_whole_one(
    name: str, count: int, make: parity.MakeExecutor, tmp_path: Path
) -> None:
    config_class, changes = DENSE[name]
    parity.save_tiny(config_class, tmp_path, **changes)
    check(tmp_path, count, make)


@parity.every_executor
@pytest.mark.parametrize("name", MOE)
def test_experts_are_shared_out_whole(name: str, make: parity.MakeExecutor, tmp_path: Path) -> None:
    config_class, changes = MOE[name]
    routing.save_sparse(config_class, tmp_path, 0, **changes)
    check(tmp_path, 2, make)
