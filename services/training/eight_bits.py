"""A head's folder with its linears in 8 bits, as compressed-tensors stores them: a code a weight, a scale an output.
Half of the bytes, and what a CPU would make of them anyway (draft_dtype)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from services.training.nets.net import write

_BITS = {"num_bits": 8, "type": "int", "symmetric": True}
CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": _BITS | {"strategy": "channel", "dynamic": False},
            "input_activations": _BITS | {"strategy": "token", "dynamic": True},
        }
    },
    "ignore": ["re:.*embed_tokens"],
}


def store_in_8_bits(folder: Path) -> None:
    """Of a folder that a net has saved."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if tensor.dim() == 2 and name.endswith(".weight") and "embed_tokens" not in name:
            codes, scales = in_8_bits(tensor)
            tensors |= {name: codes, f"{name}_scale": scales}
        else:
            tensors[name] = tensor
    write(folder, config | {"quantization_config": CONFIG}, tensors)


def in_8_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [N, K], and scales [N, 1] in the precision that is stored."""
    weight = weight.float()
    scales = (weight.abs().amax(1, keepdim=True) / 127).clamp(min=1e-8).to(torch.bfloat16).float()
    return (weight / scales).round().clamp(-127, 127).to(torch.int8), scales
