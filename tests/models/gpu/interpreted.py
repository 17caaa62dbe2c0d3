"""Tiny models of every kind of network, and the GPU executor on them, in Triton's interpreter or on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers import (
    DeepseekV3Config,
    Ernie4_5_MoeConfig,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3NextConfig,
)

from kernels import interpreter
from models.executor import Executor, Options
from models.gpu.executor import GpuExecutor
from models.spec import Network
from models.weights import Weights

sys.path.insert(0, str(Path(__file__).parents[1]))
import routing

FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "norms of heads, a window in one layer": (
        Qwen3Config,
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "experts": (
        Ernie4_5_MoeConfig,
        {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 24, "moe_num_shared_experts": 1},
    ),
    "latent attention, experts in groups": (DeepseekV3Config, routing.DEEPSEEK),
    "norms at the ends, scaled embeddings": (
        Gemma3TextConfig,
        {"head_dim": 16, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"],
         "tie_word_embeddings": True, "pad_token_id": None},
    ),
    "sinks, experts with biases": (
        GptOssConfig,
        {"head_dim": 16, "sliding_window": 7, "num_local_experts": 4, "num_experts_per_tok": 2,
         "intermediate_size": 24},
    ),
}
# They have no trees, no shared pages and no ranks.
HYBRIDS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "delta nets, gates of attention and of a shared expert": (
        Qwen3NextConfig,
        {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
         "shared_expert_intermediate_size": 40, "layer_types": ["linear_attention", "full_attention"]},
    ),
}


def on_cpu(network: Network, weights: Weights, options: Options) -> Executor:
    return GpuExecutor(network, weights, options, device="cpu")


def anywhere(network: Network, weights: Weights, options: Options) -> Executor:
    """In the interpreter where it is in use, else on the GPU."""
    return GpuExecutor(network, weights, options, device="cpu" if interpreter.in_use() else "cuda")


def save(name: str, folder: Path, **more: Any) -> Any:
    config, changes = (FAMILIES | HYBRIDS)[name]
    return routing.save_sparse(config, folder, 0, **({"num_hidden_layers": 2} | changes | more))
