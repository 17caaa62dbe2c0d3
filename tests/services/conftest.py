from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A folder that passes for a model, with weights of four bytes and no chat template."""
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": 300}))
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return folder
