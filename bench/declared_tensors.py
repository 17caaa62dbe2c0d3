"""Tensors of a declared head or model, as a folder has them or drawn at random, and folders made of them: for
bench/draft_folders.py and bench/mtp_folders.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from models import spec
from models.check import parts_of
from models.heads.weights import HeadWeights
from models.sources import read_json
from models.weights import Weights

Tensors = dict[str, torch.Tensor]
# Of what a model's folder has beside config.json and weights.
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder / "config.json")
    return found


def write(folder: Path, config: dict[str, Any], tensors: Tensors, model: Path | None = None) -> Path:
    """`model`: the folder whose tokenizer it gets."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if model is not None:
        for name in TOKENIZER:
            if (model / name).is_file():
                shutil.copy(model / name, folder)
    return folder


def stored(declared: Any, weights: Weights | HeadWeights) -> Tensors:
    """All its linears and norms, the linears dense."""
    found: Tensors = {}
    for item in parts_of(declared):
        if isinstance(item, spec.Norm):
            found[f"{item.name}.weight"] = weights.take(f"{item.name}.weight", item.width)
        elif isinstance(item, spec.Linear):
            linear = weights.linear(item)
            for index, part in enumerate(linear.parts):
                found[f"{part.name}.weight"] = part.codes if part.kind == "plain" else part.dense(torch.float32)
                if linear.biases:
                    found[f"{part.name}.bias"] = linear.biases[index]
    return found


def drawn(declared: Any, seed: int) -> Tensors:
    """All its linears, norms and routers' biases, random: values keep their size from layer to layer."""
    source = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source)

    found: Tensors = {}
    for item in parts_of(declared):
        if isinstance(item, spec.Norm):
            found[f"{item.name}.weight"] = 1 + 0.1 * noise(item.width)
        elif isinstance(item, spec.Router) and item.bias:
            found[item.bias] = 0.1 * noise(item.experts)
        elif isinstance(item, spec.Linear):
            for part in item.parts:
                found[f"{part.name}.weight"] = noise(part.outputs, item.inputs) * item.inputs**-0.5
                if item.bias:
                    found[f"{part.name}.bias"] = 0.1 * noise(part.outputs)
    return found


def mostly_hidden(linear: torch.Tensor, hidden_first: bool = False) -> None:
    """Of what joins embedding and hidden value: the hidden value goes through, so that drafts are as different from
    each other as the model's tokens are."""
    size = len(linear)
    half = linear[:, :size] if hidden_first else linear[:, size:]
    half += torch.eye(size)
