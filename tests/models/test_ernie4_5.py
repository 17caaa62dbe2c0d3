"""ERNIE 4.5 (dense) against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
from transformers import Ernie4_5Config

from models.config import read_network
from models.sources import ModelError

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"head_dim": 16},
    "tied, heads wider than their share": {"head_dim": 32, "tie_word_embeddings": True},
    "biases": {"head_dim": 16, "use_bias": True},
    "linear rope": {
        "head_dim": 16,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0},
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    parity.check_parity(parity.save_tiny(Ernie4_5Config, tmp_path, **VARIANTS[variant]), tmp_path)


@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    parity.check_bfloat16(parity.save_tiny(Ernie4_5Config, tmp_path, head_dim=16), tmp_path, make)


FIELDS = {
    "architectures": ["Ernie4_5ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_what_is_not_said_is_as_the_family_has_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FIELDS | {"rms_norm_eps": None}))
    network = read_network(tmp_path)
    theirs = Ernie4_5Config(**FIELDS)
    attention = network.layers[0].attention
    assert attention.head_dim == theirs.head_dim == 128
    assert attention.rope.theta == theirs.rope_parameters["rope_theta"] == 500000
    assert network.norm.epsilon == theirs.rms_norm_eps == 1e-5
    assert network.head.parts[0].name == "model.embed_tokens"


@pytest.mark.parametrize(
    "changes", [{"hidden_act": "relu"}, {"use_bias": "yes"}, {"compression_ratio": 2.0}, {"head_dim": 12}]
)
def test_a_field_that_is_not_computed_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FIELDS | changes))
    with pytest.raises(ModelError, match=next(iter(changes))):
        read_network(tmp_path)
