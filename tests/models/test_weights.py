"""Weights: tensors by name from one file or several, with wrong ones named."""

from __future__ import annotations

import json
from pathlib import Path

import parity
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from models.batch import Stretch
from models.check import check_model
from models.plain import PlainExecutor
from models.sources import ModelError
from models.weights import Weights


def test_a_tensor_comes_as_it_is_stored(tmp_path: Path) -> None:
    stored = torch.randn(3, 4).bfloat16()
    save_file({"a": stored}, tmp_path / "model.safetensors")
    weights = Weights(tmp_path)
    assert "a" in weights and "b" not in weights
    assert torch.equal(weights.take("a", 3, 4), stored)


def test_a_decoder_saved_without_its_head_has_the_names_and_logits_of_one_with_it(tmp_path: Path) -> None:
    whole, alone = tmp_path / "whole", tmp_path / "alone"
    theirs = parity.save_tiny(Qwen3Config, whole, tie_word_embeddings=True, head_dim=16)
    theirs.model.save_pretrained(alone)
    for name in ("config.json", "tokenizer.json"):
        (alone / name).write_bytes((whole / name).read_bytes())
    assert "embed_tokens.weight" in load_file(alone / "model.safetensors")
    tokens = parity.random_tokens(9, 1)
    found = [
        parity.run(parity.load(folder, PlainExecutor), [Stretch(tokens, 0, [0], 0)]).tolist()
        for folder in (whole, alone)
    ]
    assert found[0] == found[1]
    assert check_model(alone).parameters == check_model(whole).parameters


def test_a_heads_folder_keeps_its_names(tmp_path: Path) -> None:
    names = ("embed_tokens.weight", "layers.0.input_layernorm.weight", "norm.weight", "fc.weight")
    save_file({name: torch.ones(1) for name in names}, tmp_path / "model.safetensors")
    assert all(name in Weights(tmp_path) for name in names)


def test_shards_are_one_set_of_tensors(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(2)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = Weights(tmp_path)
    assert weights.take("a", 1).item() == 1 and weights.take("b", 2).sum() == 0


def test_a_missing_tensor_a_wrong_shape_and_a_wrong_type_are_named(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3, 4), "n": torch.ones(1, dtype=torch.int8)}, tmp_path / "model.safetensors")
    weights = Weights(tmp_path)
    with pytest.raises(ModelError, match="tensor gone is missing"):
        weights.take("gone", 1)
    with pytest.raises(ModelError, match=r"tensor a has shape \(3, 4\).*\(4, 3\)"):
        weights.take("a", 4, 3)
    with pytest.raises(ModelError, match=r"tensor n is I8 .*BF16"):
        weights.take("n", 1)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        Weights(tmp_path)
