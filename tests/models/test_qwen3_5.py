"""Qwen3.5's text models against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import parity
import pytest
import routing
import torch
from safetensors.torch import load_file, save_file
from test_qwen3_next import SIZES, save
from transformers import Qwen3_5MoeTextConfig, Qwen3_5TextConfig

from models.batch import Stretch
from models.check import check_model
from models.config import read_network
from models.sources import ModelError

AXES = {
    "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
    "mrope_interleaved": True,
}  # fmt: skip
DENSE = {name: value for name, value in SIZES.items() if "expert" not in name and not name.startswith("moe_")}


def test_logits_and_text_are_those_of_transformers(tmp_path: Path) -> None:
    parity.check_parity(save(Qwen3_5TextConfig, tmp_path, rope_parameters=AXES, **DENSE), tmp_path)


def test_with_experts(tmp_path: Path) -> None:
    routing.check(save(Qwen3_5MoeTextConfig, tmp_path, seed=1, rope_parameters=AXES, **SIZES), tmp_path)


def test_the_text_part_of_a_model_that_sees_images_is_the_same_model(tmp_path: Path) -> None:
    text, whole = tmp_path / "text", tmp_path / "whole"
    whole.mkdir()
    save(Qwen3_5TextConfig, text, rope_parameters=AXES, **DENSE)
    config = json.loads((text / "config.json").read_text())
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": config,
        "tie_word_embeddings": False, "vision_config": {"depth": 2},
    }  # fmt: skip
    (whole / "config.json").write_text(json.dumps(config))
    (whole / "tokenizer.json").write_text("{}")
    tensors = load_file(text / "model.safetensors")
    named = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
    named |= {"model.visual.patch_embed.proj.weight": torch.zeros(2, 2), "mtp.norm.weight": torch.zeros(64)}
    save_file(named, whole / "model.safetensors", {"format": "pt"})
    check_that_they_are_one(whole, text)


def test_experts_in_one_tensor_are_those_that_stand_apart(tmp_path: Path) -> None:
    apart, together = tmp_path / "apart", tmp_path / "together"
    for folder in (apart, together):
        save(Qwen3_5MoeTextConfig, folder, **SIZES)
    tensors = load_file(apart / "model.safetensors")
    for layer in range(3):
        name = next(each for each in tensors if each.endswith(f"layers.{layer}.mlp.experts.0.gate_proj.weight"))
        name = name.removesuffix("0.gate_proj.weight")
        gate, up, down = (
            torch.stack([tensors.pop(f"{name}{expert}.{part}_proj.weight") for expert in range(8)])
            for part in ("gate", "up", "down")
        )
        tensors |= {f"{name}gate_up_proj": torch.cat([gate, up], dim=1), f"{name}down_proj": down}
    save_file(tensors, together / "model.safetensors", {"format": "pt"})
    check_that_they_are_one(together, apart)


def check_that_they_are_one(folder: Path, other: Path) -> None:
    """As many parameters, and the same bits."""
    assert check_model(folder).parameters == check_model(other).parameters
    tokens = parity.random_tokens(20, 1)
    for make in parity.EXECUTORS.values():
        found, expected = (
            parity.run(parity.load(each, make), [Stretch(tokens, 0, [3, 4], 0)]) for each in (folder, other)
        )
        assert torch.equal(found, expected)


def test_weights_of_experts_that_are_not_normalised_are_named(tmp_path: Path) -> None:
    save(Qwen3_5MoeTextConfig, tmp_path, **SIZES)
    with parity.edited_config(tmp_path, norm_topk_prob=False), pytest.raises(ModelError, match="norm_topk_prob"):
        read_network(tmp_path)
