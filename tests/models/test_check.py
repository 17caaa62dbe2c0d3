"""A model is checked whole without its weights, and without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_folder import CONFIG, read_safetensors, shapes, write_safetensors, write_tiny_model

from models.check import check_model, kv_bytes_per_token
from models.quantized.registry import FORMATS
from models.sources import ModelError

ROOT = Path(__file__).resolve().parents[2]


def test_what_a_model_is_is_told(tmp_path: Path) -> None:
    checked = check_model(write_tiny_model(tmp_path))
    count = sum(a * (b[0] if b else 1) for a, *b in shapes(CONFIG).values())
    assert checked.architecture == "LlamaForCausalLM" and checked.format == "not quantised"
    assert checked.parameters == count and checked.stored_bytes == 4 * count and checked.files == 1
    # Two layers, keys and values, two heads of 16.
    assert kv_bytes_per_token(checked.network, 2) == 2 * 2 * 2 * 16 * 2


def test_weights_are_not_read(tmp_path: Path) -> None:
    """Sixteen gigabytes that take no room: whoever read them would take minutes."""
    folder = write_tiny_model(tmp_path, hollow=True, hidden_size=32768, intermediate_size=32768)
    assert check_model(folder).stored_bytes > 16 << 30


def test_neither_checking_nor_any_format_brings_torch() -> None:
    modules = ", ".join(["models.check", *(place.partition(":")[0] for place in FORMATS.values())])
    code = f"import sys, {modules}; sys.exit(any(n in sys.modules for n in ('numpy', 'torch', 'numba')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM"])
def test_every_tensor_of_a_network_is_looked_at(architecture: str, tmp_path: Path) -> None:
    """One tensor after the other is missing, and each is named."""
    folder = write_tiny_model(tmp_path, architectures=[architecture], num_hidden_layers=1, hollow=True)
    header, values = read_safetensors(folder / "model.safetensors")
    for name in header:
        renamed = {("gone" if each == name else each): entry for each, entry in header.items()}
        write_safetensors(folder / "model.safetensors", renamed, values)
        with pytest.raises(ModelError, match=f"tensor {name} is missing"):
            check_model(folder)
