"""Qwen3 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parity
import pytest
from transformers import Qwen3Config

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"head_dim": 16},
    "heads wider than their share": {"head_dim": 32},
    "tied": {"head_dim": 16, "tie_word_embeddings": True},
    "biases": {"head_dim": 16, "attention_bias": True},
    "windows": {"head_dim": 16, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    "layer types": {
        "head_dim": 16,
        "use_sliding_window": True,
        "sliding_window": 33,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "yarn": {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    parity.check_parity(parity.save_tiny(Qwen3Config, tmp_path, **VARIANTS[variant]), tmp_path)


@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    parity.check_bfloat16(parity.save_tiny(Qwen3Config, tmp_path, head_dim=16), tmp_path, make)
