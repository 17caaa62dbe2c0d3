"""By what two machines see that they have the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_folder import write_tiny_model

from models.errors import ModelError
from models.fingerprint import fingerprint


def weights(folder: Path) -> Path:
    (found,) = folder.glob("*.safetensors")
    return found


def test_a_copy_is_the_same_model_whatever_it_is_called_and_who_saved_it(tmp_path: Path) -> None:
    one, two = write_tiny_model(tmp_path / "one"), write_tiny_model(tmp_path / "two")
    config = json.loads((two / "config.json").read_text())
    (two / "config.json").write_text(json.dumps({**config, "_name_or_path": "elsewhere", "transformers_version": "9"}))
    tensors = load_file(weights(two))
    names = sorted(tensors)
    weights(two).rename(two / "model-00001-of-00002.safetensors")
    for number, some in enumerate((names[::2], names[1::2])):
        part = two / f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: tensors[name] for name in some}, part)
    places = {name: f"model-0000{1 + (name in names[1::2])}-of-00002.safetensors" for name in names}
    (two / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert fingerprint(one).name == "one"
    assert fingerprint(one).difference(fingerprint(two)) == ""


def test_what_differs_is_named(tmp_path: Path) -> None:
    own = fingerprint(write_tiny_model(tmp_path / "own"))
    config = write_tiny_model(tmp_path / "config", rms_norm_eps=0.5)
    assert own.difference(fingerprint(config)) == "another config.json"
    typed = write_tiny_model(tmp_path / "typed")
    tensors = load_file(weights(typed))
    save_file({name: tensor.to(torch.float16) for name, tensor in tensors.items()}, weights(typed))
    assert own.difference(fingerprint(typed)) == "tensors of other names, types or shapes"
    tuned = write_tiny_model(tmp_path / "tuned")
    save_file({name: tensor * 1.01 for name, tensor in tensors.items()}, weights(tuned))
    assert own.difference(fingerprint(tuned)) == "other weights"


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "bare")
    weights(folder).unlink()
    with pytest.raises(ModelError):
        fingerprint(folder)
