"""Which function describes which architecture: one line each. Imports none of them until it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

FAMILIES: dict[str, str] = {
    "DeepseekV3ForCausalLM": "models.deepseek_v3:network",
    "Ernie4_5ForCausalLM": "models.ernie4_5:network",
    "Ernie4_5_MoeForCausalLM": "models.ernie4_5_moe:network",
    "Gemma3ForCausalLM": "models.gemma3:network",
    "Glm4MoeForCausalLM": "models.glm4_moe:network",
    # GLM-4.7 Flash: DeepSeek-V3's layers.
    "Glm4MoeLiteForCausalLM": "models.deepseek_v3:network",
    "GptOssForCausalLM": "models.gpt_oss:network",
    "LlamaForCausalLM": "models.llama:network",
    # Qwen2's layers; its MTP block is models/heads/mtp.py's.
    "MiMoForCausalLM": "models.qwen2:network",
    "Ministral3ForCausalLM": "models.ministral3:network",
    "MistralForCausalLM": "models.mistral:network",
    "Qwen2ForCausalLM": "models.qwen2:network",
    "Qwen3ForCausalLM": "models.qwen3:network",
    "Qwen3MoeForCausalLM": "models.qwen3_moe:network",
    "Qwen3NextForCausalLM": "models.qwen3_next:network",
    "Qwen3_5ForCausalLM": "models.qwen3_5:network",
    "Qwen3_5MoeForCausalLM": "models.qwen3_5:sparse_network",
}

# Models that see images, too: their text part, text_config, is one of these families, by its model_type.
WITH_IMAGES = (
    "Gemma3ForConditionalGeneration", "KimiK25ForConditionalGeneration", "Mistral3ForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
)  # fmt: skip
TEXT_PARTS: dict[str, str] = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
}

# Families that people ask for -> what of them isn't computed.
LACKING: dict[str, str] = {
    "DeepseekV32ForCausalLM": "DeepSeek-V3.2's sparse attention",
    "Gemma2ForCausalLM": "Gemma 2's softcapping",
    "GlmMoeDsaForCausalLM": "GLM-5's sparse attention",
    "KimiLinearForCausalLM": "Kimi Linear's linear attention",
    "Llama4ForConditionalGeneration": "Llama 4's chunked attention",
    "MambaForCausalLM": "Mamba's state-space recurrence",
    "MiniMaxM1ForCausalLM": "MiniMax M1's linear attention",
    "NemotronHForCausalLM": "Nemotron-H's state-space recurrence",
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
