"""Which function describes which architecture: one line each. Imports none of them until it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

FAMILIES: dict[str, str] = {
    "DeepseekV3ForCausalLM": "models.deepseek_v3:network",
    "Ernie4_5ForCausalLM": "models.ernie4_5:network",
    "Ernie4_5_MoeForCausalLM": "models.ernie4_5_moe:network",
    "LlamaForCausalLM": "models.llama:network",
    "MistralForCausalLM": "models.mistral:network",
    "Qwen2ForCausalLM": "models.qwen2:network",
    "Qwen3ForCausalLM": "models.qwen3:network",
    "Qwen3MoeForCausalLM": "models.qwen3_moe:network",
}

# What GGUF files call the same families.
GGUF_ARCHITECTURES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

def declaration(architecture: str) -> Any:
    """The function of an architecture of `FAMILIES`: Fields -> Network."""
    module, name = FAMILIES[architecture].split(":")
    return getattr(import_module(module), name)
