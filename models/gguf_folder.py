"""Writes a Hugging Face folder from a GGUF file: config, tokenizer, and weights in bfloat16.

bfloat16 is what these models were trained in and what the engine packs: it loads without a conversion, is
half of float32, and its rounding (2^-9) lies far below that of a 4-bit block. Float32 runs and the
transformers oracle read the same folder, so parity is unaffected. numpy only, one tensor in memory at a time.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from models.gguf import GgufError, GgufFile, Tensor
from models.gguf_tokenizer import end_token_ids, tokenizer_config, tokenizer_json
from models.registry import GGUF_ARCHITECTURES

_CHUNK_VALUES = 1 << 24
Progress = Callable[[str, int, int], None]

# Names within a layer, GGUF -> Hugging Face.
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_SCALING_NAMES = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
# Whose q and k rows stand in another order than Hugging Face's.
_REORDERED = ("llama",)
# Holds the scaled rope frequencies of Llama 3.1+; the config says the same (`_rope_scaling`).
_ROPE_FACTORS = "rope_freqs.weight"


def convert(gguf: GgufFile, folder: Path, progress: Progress | None = None) -> None:
    """Fill `folder` from the file. The caller makes it appear at once by renaming it when we return."""
    config = model_config(gguf)
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", tokenizer_json(gguf))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(gguf))
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": end_token_ids(gguf)}
    _write_json(folder / "generation_config.json", generation)
    _write_weights(gguf, config, folder / "model.safetensors", progress)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def model_config(gguf: GgufFile) -> dict[str, Any]:
    """config.json from the metadata."""
    entries = gguf.metadata
    kind = entries.get("general.architecture")
    if kind not in GGUF_ARCHITECTURES:
        raise GgufError(f"{gguf.path}: architecture {kind!r} is not supported; {', '.join(GGUF_ARCHITECTURES)}")

    def number(name: str, default: float | None = None) -> Any:
        value = entries.get(f"{kind}.{name}", default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise GgufError(f"{gguf.path}: {kind}.{name} is {value!r}")
        # Metadata floats are float32: 1e-5 comes as 9.999999747378752e-06. The short form is what was meant.
        return float(str(np.float32(value))) if isinstance(value, float) else value

    heads = number("attention.head_count")
    head_dim = number("attention.key_length", number("embedding_length") // heads)
    # What the file could ask for and the config cannot say.
    for name, computed in (
        ("attention.value_length", head_dim),
        ("rope.dimension_count", head_dim),
        ("attention.sliding_window", None),
        ("expert_count", 0),
    ):
        if entries.get(f"{kind}.{name}", computed) != computed:
            raise GgufError(f"{gguf.path}: {kind}.{name} is {entries[f'{kind}.{name}']!r}; read is {computed}")
    vocabulary = gguf.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in gguf.tensors else 0
    return {
        "architectures": [GGUF_ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(gguf, kind),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in gguf.tensors,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "vocab_size": vocabulary,
        "bos_token_id": entries.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": entries.get("tokenizer.ggml.eos_token_id"),
        "dtype": "bfloat16",
    }


def _rope_scaling(gguf: GgufFile, kind: str) -> dict[str, Any] | None:
    """The file stores scaled frequencies or names a scaling; a config names its parameters."""
    entries = gguf.metadata
    prefix = f"{kind}.rope.scaling."
    said = {key.removeprefix(prefix): value for key, value in entries.items() if key.startswith(prefix)}
    for key in said.keys() - {"type", "finetuned", *_SCALING_NAMES}:
        raise GgufError(f"{gguf.path}: {prefix}{key} is {said[key]!r}; read are {', '.join(_SCALING_NAMES)}")
    name = said.get("type", "none")
    if name in ("linear", "yarn"):
        return {"rope_type": name, **{ours: said[theirs] for theirs, ours in _SCALING_NAMES.items() if theirs in said}}
    if name != "none":
        raise GgufError(f"{gguf.path}: rope scaling {name!r} is not supported; linear, yarn and llama3 are")
    if _ROPE_FACTORS not in gguf.tensors:
        return None
    factors = gguf.values(_ROPE_FACTORS)
    for factor in (8.0, 32.0):  # Llama 3.1 and 3.2
        scaling = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        if np.allclose(_llama3_factors(len(factors), entries, kind, factor), factors, rtol=1e-3):
            return scaling
    raise GgufError(f"{gguf.path}: {_ROPE_FACTORS} matches no known rope scaling")


def _llama3_factors(count: int, entries: dict[str, Any], kind: str, factor: float) -> np.ndarray:
    base = float(entries.get(f"{kind}.rope.freq_base", 10000.0))
    wavelength = 2 * math.pi * base ** (np.arange(count) / count)
    smooth = np.clip((8192 / wavelength - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    return 1.0 / ((1 - smooth) / factor + smooth)


# Weights ---------------------------------------------------------------------------------------------


def _write_weights(gguf: GgufFile, config: dict[str, Any], path: Path, progress: Progress | None) -> None:
    tensors = {_hugging_face_name(gguf, name): tensor for name, tensor in _wanted(gguf)}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + 2 * math.prod(tensor.shape)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in tensors.values():
            _write_tensor(gguf, config, tensor, file)
            if progress:
                progress("convert", file.tell() - 8 - len(encoded), end)


def _wanted(gguf: GgufFile) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in gguf.tensors.items() if name != _ROPE_FACTORS)


def _hugging_face_name(gguf: GgufFile, name: str) -> str:
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    parts = name.split(".")  # blk.<layer>.<what>.weight
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdigit() and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise GgufError(f"{gguf.path}: tensor {name} belongs to no supported family")


def _write_tensor(gguf: GgufFile, config: dict[str, Any], tensor: Tensor, file: BinaryIO) -> None:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for part, count in heads.items():
        if f".{part}." in tensor.name and gguf.metadata["general.architecture"] in _REORDERED:
            file.write(_to_bf16(_halves_apart(gguf, tensor, count)))
            return
    rows = tensor.shape[0]
    step = rows if len(tensor.shape) == 1 else max(1, _CHUNK_VALUES // math.prod(tensor.shape[1:]))
    for first in range(0, rows, step):
        file.write(_to_bf16(gguf.values(tensor.name, first, first + step)))


def _halves_apart(gguf: GgufFile, tensor: Tensor, heads: int) -> np.ndarray:
    """Undo the file's order of q and k rows.

    GGUF rotates neighbours (0,1)(2,3)…, Hugging Face the two halves of a head: (0,h)(1,h+1)…
    """
    values = gguf.values(tensor.name)
    if values.shape[0] % (2 * heads):
        raise GgufError(f"{gguf.path}: {tensor.name} has {values.shape[0]} rows for {heads} heads")
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _to_bf16(values: np.ndarray) -> memoryview:
    """Round to nearest, ties to even, on the bits. Quantized files hold no NaN, whose rounding would differ."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return memoryview(rounded.astype(np.uint16)).cast("B")
