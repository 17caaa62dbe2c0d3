"""Weights: tensors by name from one file or several, with wrong ones named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from models.sources import ModelError
from models.weights import Weights


def test_a_tensor_comes_as_it_is_stored(tmp_path: Path) -> None:
    stored = torch.randn(3, 4).bfloat16()
    save_file({"a": stored}, tmp_path / "model.safetensors")
    weights = Weights(tmp_path)
    assert "a" in weights and "b" not in weights
    assert torch.equal(weights.take("a", 3, 4), stored)


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
