"""Qwen2 and Qwen2.5 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import parity
import pytest
from transformers import Qwen2Config

from models.config import read_network

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "windows in later layers": {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2},
    "windows in all layers": {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0},
    "windows that are not used": {"use_sliding_window": False, "sliding_window": 20, "max_window_layers": 0},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    parity.check_parity(parity.save_tiny(Qwen2Config, tmp_path, **VARIANTS[variant]), tmp_path)


def test_only_later_layers_have_the_window_however_that_is_said(tmp_path: Path) -> None:
    theirs = parity.save_tiny(Qwen2Config, tmp_path, **VARIANTS["windows in later layers"])
    windows = [20 if kind == "sliding_attention" else 0 for kind in theirs.config.layer_types]
    assert windows == [0, 0, 20]
    assert [layer.attention.window for layer in read_network(tmp_path).layers] == windows
    # Folders of older versions have no list.
    with parity.edited_config(tmp_path, layer_types=None):
        assert [layer.attention.window for layer in read_network(tmp_path).layers] == windows


def test_mimo_is_the_same_network_under_another_name(tmp_path: Path) -> None:
    parity.save_tiny(Qwen2Config, tmp_path)
    qwen2 = read_network(tmp_path)
    with parity.edited_config(tmp_path, architectures=["MiMoForCausalLM"], num_nextn_predict_layers=1):
        assert read_network(tmp_path) == qwen2
