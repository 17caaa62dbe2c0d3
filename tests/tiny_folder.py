"""A whole model in 300 kB, written without torch: a Llama of two layers with random weights and a tokenizer of words.

What tests damage to see what is said of it, and what they run where any model will do.
"""

from __future__ import annotations

import array
import json
import math
import os
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


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        found |= {f"{prefix}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        linears = {
            "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }  # fmt: skip
        found |= {f"{prefix}{name}.weight": shape for name, shape in linears.items()}
    return found | {"model.norm.weight": (hidden,)}


def write_tiny_model(folder: Path, *, hollow: bool = False, **changes: Any) -> Path:
    """`hollow`: all weights are zeros that take no room on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    header, at = {}, 0
    for name, shape in shapes(config).items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    path = folder / "model.safetensors"
    write_safetensors(path, header, b"" if hollow else b"".join(map(_random_weight, shapes(config).values())))
    if hollow:
        os.truncate(path, path.stat().st_size + at)
    return path.parent


def _random_weight(shape: tuple[int, ...]) -> bytes:
    source, around = random.Random(math.prod(shape)), len(shape) == 1
    return array.array("f", (source.uniform(-0.1, 0.1) + around for _ in range(math.prod(shape)))).tobytes()


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
