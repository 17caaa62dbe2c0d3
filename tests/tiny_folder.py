"""A whole model in 300 kB, written without torch: a Llama of two layers with random weights and a tokenizer of words.

What tests damage to see what is said of it, and what they run where any model will do.
"""

from __future__ import annotations

import array
import json
import math
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 304,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 0,
    "dtype": "float32",
}


def shapes() -> dict[str, tuple[int, ...]]:
    hidden, wide, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 32
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (CONFIG["vocab_size"], hidden)}
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        found |= {f"{prefix}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        linears = {
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }  # fmt: skip
        found |= {f"{prefix}{name}.weight": shape for name, shape in linears.items()}
    return found | {"model.norm.weight": (hidden,)}


def write_tiny_model(folder: Path, **changes: Any) -> Path:
    """`changes` are of config.json alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    source = random.Random(1)
    tensors = {
        name: array.array("f", (source.uniform(-0.1, 0.1) + (len(shape) == 1) for _ in range(math.prod(shape))))
        for name, shape in shapes().items()
    }
    header, values, at = {}, [], 0
    for name, numbers in tensors.items():
        raw = numbers.tobytes()
        header[name] = {"dtype": "F32", "shape": list(shapes()[name]), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        values.append(raw)
    write_safetensors(folder / "model.safetensors", header, b"".join(values))
    return folder


def write_safetensors(path: Path, header: Mapping[str, Any] | bytes, values: bytes, length: int | None = None) -> None:
    """`header` and its `length` may be as wrong as a test wants them."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + values)


def read_safetensors(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def _tokenizer() -> dict[str, Any]:
    vocabulary = {"<end>": 0, **{f"w{i}": i for i in range(1, CONFIG["vocab_size"])}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w1"},
    }
