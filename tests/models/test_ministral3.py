"""Ministral 3 against transformers, alone and as the text part of a model that sees images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Ministral3Config, MistralConfig

from models.config import read_network
from models.plain import PlainExecutor
from models.sources import ModelError
from models.weights import Weights

YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
SIZES: dict[str, Any] = {"head_dim": 16, "max_position_embeddings": 1024, "rope_parameters": YARN}


def test_logits_and_text_are_those_of_transformers(tmp_path: Path) -> None:
    parity.check_parity(parity.save_tiny(Ministral3Config, tmp_path, **SIZES), tmp_path)


def test_the_context_ends_where_queries_would_be_scaled(tmp_path: Path) -> None:
    parity.save_tiny(Ministral3Config, tmp_path, **SIZES)
    assert read_network(tmp_path).max_context == 256


def nested(folder: Path, names: dict[str, str], **whole: Any) -> None:
    """The same model as the text part of another. `names`: beginnings of its tensors' names, and what they become."""
    config = json.loads((folder / "config.json").read_text())
    text = {name: value for name, value in config.items() if name not in {"architectures", "dtype", *whole}}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "dtype": "float32", "text_config": text, **whole}
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        start = next(each for each in names if name.startswith(each))
        tensors[names[start] + name.removeprefix(start)] = tensor
    tensors["vision_tower.patch_conv.weight"] = torch.full((4, 4), torch.nan)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


LAYOUTS = {
    "as published": {"": "language_model."},
    "as transformers has it in memory": {"model.": "model.language_model.", "lm_head.": "lm_head."},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [Ministral3Config, MistralConfig], ids=lambda each: each.model_type)
def test_a_text_part_is_read_without_its_images(kind: Any, layout: str, tmp_path: Path) -> None:
    theirs = parity.save_tiny(kind, tmp_path, **(SIZES if kind is Ministral3Config else {}))
    nested(tmp_path, LAYOUTS[layout])
    executor, tokens = parity.load(tmp_path, PlainExecutor), parity.random_tokens(20, 1)
    logits = parity.run(executor, [parity.Stretch(tokens, 0, [4, 2], 0)])
    parity.assert_close(logits, parity.logits_of(theirs, tokens), layout)
    assert "vision_tower.patch_conv.weight" not in Weights(tmp_path)


def test_what_stands_beside_the_text_part_holds_for_it(tmp_path: Path) -> None:
    parity.save_tiny(MistralConfig, tmp_path, tie_word_embeddings=True)
    nested(tmp_path, LAYOUTS["as published"], tie_word_embeddings=True, eos_token_id=7)
    network = read_network(tmp_path)
    assert network.head.parts[0].name == "model.embed_tokens" and network.eos_token_ids == (7,)


@pytest.mark.parametrize("text", [None, [], {"model_type": "pixtral"}])
def test_a_text_part_of_no_family_is_named(tmp_path: Path, text: Any) -> None:
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="text_config" if not isinstance(text, dict) else "model_type"):
        read_network(tmp_path)
