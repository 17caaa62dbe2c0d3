"""The old ModelConfig: goes with models/old_config.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.config import ModelConfig, read_config
from models.sources import ModelError
from models.spec import RopeScaling

FIELDS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(FIELDS | changes))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_config(folder)


def test_what_a_config_leaves_out_has_the_familys_default(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.kv_heads, config.head_dim, config.rope_theta) == (4, 16, 10000.0)
    assert not config.tied_embeddings and not config.attention_bias and config.eos_token_ids == ()


def test_the_ends_of_the_generation_config_come_first(tmp_path: Path) -> None:
    assert read(tmp_path, eos_token_id=5).eos_token_ids == (5,)
    assert read(tmp_path, {"eos_token_id": [2, 0]}, eos_token_id=5).eos_token_ids == (2, 0)


def test_rope_is_read_in_both_spellings(tmp_path: Path) -> None:
    assert read(tmp_path, rope_theta=5e5).rope_theta == 5e5
    assert read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 1e6}).rope_theta == 1e6
    linear = read(tmp_path, rope_scaling={"type": "linear", "factor": 2.0})
    assert linear.rope_scaling == RopeScaling("linear", 2.0)
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert read(tmp_path, rope_scaling=llama3).rope_scaling == RopeScaling("llama3", 8.0, 8192, 1.0, 4.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["GPT2LMHeadModel"]),
        ("hidden_act", "gelu"),
        ("quantization_config", {"quant_method": "awq"}),
        ("sliding_window", 4096),
        ("hidden_size", -1),
        ("hidden_size", "64"),
        ("hidden_size", 1 << 40),
        ("num_hidden_layers", True),
        ("num_key_value_heads", 3),
        ("head_dim", 12),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", 0),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_scaling", [1]),
        ("eos_token_id", "</s>"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(ModelError) as caught:
        read(tmp_path, **{field: value})
    assert field.removesuffix("_scaling") in caught.value.what and caught.value.fix


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="intermediate_size"):
        read(tmp_path, intermediate_size=None)
