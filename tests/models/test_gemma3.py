"""Gemma 3's text model against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig

from models.batch import Stretch
from models.check import check_model
from models.config import read_network
from models.errors import ModelError
from models.spec import Attention, Network

SIZES: dict[str, Any] = {
    "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 20, "tie_word_embeddings": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "pad_token_id": None,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a head of its own, biases": {"tie_word_embeddings": False, "attention_bias": True},
    "a longer context, all by pattern": {
        "num_hidden_layers": 7, "layer_types": None, "initializer_range": 0.1,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    parity.check_parity(parity.save_tiny(Gemma3TextConfig, tmp_path, **(SIZES | VARIANTS[variant])), tmp_path)


@pytest.mark.slow  # loops of its own are compiled
@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    parity.check_bfloat16(parity.save_tiny(Gemma3TextConfig, tmp_path, **SIZES), tmp_path, make)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma3")
    parity.save_tiny(Gemma3TextConfig, folder, **SIZES)
    return folder


def read(saved: Path, folder: Path, without: tuple[str, ...] = (), **changes: Any) -> Network:
    config = json.loads((saved / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in without}))
    return read_network(folder)


def test_older_configs_say_the_same_in_other_words(saved: Path, tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    newer = read(
        saved, tmp_path, rope_parameters={
            "full_attention": scaling | {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4},
        },
    )  # fmt: skip
    older = read(
        saved, tmp_path, ("rope_parameters", "layer_types"), rope_theta=5e5, rope_local_base_freq=2e4,
        rope_scaling=scaling, sliding_window_pattern=2,
    )  # fmt: skip
    assert [_rope(network) for network in (newer, older)] == [[(2e4, None), (5e5, 8.0), (2e4, None)]] * 2
    assert newer.max_context == older.max_context


def _rope(network: Network) -> list[Any]:
    found = [layer.attention for layer in network.layers]
    assert all(isinstance(one, Attention) and (one.window > 0) == (one.rope.theta < 1e5) for one in found)
    return [(one.rope.theta, one.rope.scaling and one.rope.scaling.factor) for one in found]


def test_the_embedding_is_scaled_as_in_training(saved: Path, tmp_path: Path) -> None:
    """The root of 1152 is 33.94, and in bfloat16 34."""
    changes = {"hidden_size": 1152, "intermediate_size": 96}
    assert read(saved, tmp_path, dtype="bfloat16", **changes).embedding_scale == 34.0
    assert read(saved, tmp_path, dtype="float32", **changes).embedding_scale == pytest.approx(1152**0.5, rel=1e-7)


@pytest.mark.parametrize("start", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_model_with_images_is_the_model_without(saved: Path, tmp_path: Path, start: str) -> None:
    config = json.loads((saved / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = load_file(saved / "model.safetensors")
    others = {"vision_tower.vision_model.head.weight": torch.ones(2), "multi_modal_projector.weight": torch.ones(2)}
    tensors = {name.replace("model.", start, 1): tensor for name, tensor in tensors.items()}
    save_file(tensors | others, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "tokenizer.json").write_text("{}")
    assert check_model(tmp_path).network == read_network(saved)
    tokens = parity.random_tokens(9, 1)
    found, expected = (
        parity.run(parity.load(folder, parity.EXECUTORS["plain"]), [Stretch(tokens, 0, [3], 0)])
        for folder in (tmp_path, saved)
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"hidden_activation": "gelu"}, "hidden_activation"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": 1}}, "rope_parameters"),
        ({"rope_scaling": 8.0}, "rope_scaling"),
    ],
)
def test_a_field_that_is_not_computed_is_named(
    saved: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        read(saved, tmp_path, **changes)
