"""Writes a Hugging Face folder from a GGUF file: config, tokenizer, and weights in bfloat16 or float32.

What the file's codes stand for is computed in float32. A model that runs in bfloat16 or int8 reads them rounded to
bfloat16, half as large; one that is asked to run in float32 gets them as they are, because the rounding (2^-9) moves
enough logits to change texts. numpy only, one tensor in memory at a time.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
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


def convert(gguf: GgufFile, folder: Path, progress: Progress | None = None, exact: bool = False) -> None:
    """Fill `folder` from the file. The caller makes it appear at once by renaming it when we return."""
    Conversion(gguf, exact).write(folder, progress)


@dataclass(frozen=True, slots=True)
class _Written:
    """A tensor of the folder: its name there, and with which number of heads q and k rows are put into order."""

    name: str
    tensor: Tensor
    heads: int
    exact: bool  # float32, not rounded to bfloat16

    @property
    def bytes(self) -> int:
        return (4 if self.exact else 2) * math.prod(self.tensor.shape)

    def encoded(self, values: np.ndarray) -> memoryview:
        if self.exact:
            return memoryview(np.ascontiguousarray(values, "<f4")).cast("B")
        return _to_bf16(values)


class Conversion:
    """What the folder will hold, to the byte: a file that isn't supported is refused before anything is written."""

    def __init__(self, gguf: GgufFile, exact: bool = False) -> None:
        self._gguf = gguf
        config = model_config(gguf) | ({"dtype": "float32"} if exact else {})
        generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": end_token_ids(gguf)}
        self._documents = {
            "config.json": _json(config),
            "tokenizer.json": _json(tokenizer_json(gguf)),
            "tokenizer_config.json": _json(tokenizer_config(gguf)),
            "generation_config.json": _json(generation),
        }
        weights = [tensor for tensor in gguf.tensors.values() if _is_weight(tensor)]
        self._tensors = [_written(gguf, config, tensor, exact) for tensor in weights]
        self._header = _header(self._tensors)
        self._values = sum(each.bytes for each in self._tensors)
        self.bytes = sum(map(len, self._documents.values())) + len(self._header) + self._values

    def write(self, folder: Path, progress: Progress | None = None) -> None:
        for name, document in self._documents.items():
            (folder / name).write_bytes(document)
        done = 0
        with (folder / "model.safetensors").open("wb") as file:
            file.write(self._header)
            for each in self._tensors:
                _write_tensor(self._gguf, each, file)
                done += each.bytes
                if progress:
                    progress("convert", done, self._values)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def model_config(gguf: GgufFile) -> dict[str, Any]:
    """config.json from the metadata."""
    entries = gguf.metadata
    kind = entries.get("general.architecture")
    if not isinstance(kind, str) or kind not in GGUF_ARCHITECTURES:
        raise GgufError(f"{gguf.path}: architecture {kind!r} is not supported; {', '.join(GGUF_ARCHITECTURES)}")

    def number(name: str, default: float | None = None) -> Any:
        value = entries.get(f"{kind}.{name}", default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise GgufError(f"{gguf.path}: {kind}.{name} is {value!r}")
        # Metadata floats are float32: 1e-5 comes as 9.999999747378752e-06. The short form is what was meant.
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def count(name: str, default: int | None = None) -> int:
        value = number(name, default)
        if not isinstance(value, int):
            raise GgufError(f"{gguf.path}: {kind}.{name} is {value!r}, no whole number")
        return value

    heads = count("attention.head_count")
    head_dim = count("attention.key_length", count("embedding_length") // heads)
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
        "hidden_size": count("embedding_length"),
        "intermediate_size": count("feed_forward_length"),
        "num_hidden_layers": count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": count("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(gguf, kind, number("rope.freq_base", 10000.0)),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in gguf.tensors,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "vocab_size": vocabulary,
        "bos_token_id": entries.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": entries.get("tokenizer.ggml.eos_token_id"),
        "dtype": "bfloat16",
    }


def _rope_scaling(gguf: GgufFile, kind: str, base: float) -> dict[str, Any] | None:
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
        if np.allclose(_llama3_factors(len(factors), base, factor), factors, rtol=1e-3):
            return scaling
    raise GgufError(f"{gguf.path}: {_ROPE_FACTORS} matches no known rope scaling")


def _llama3_factors(count: int, base: float, factor: float) -> np.ndarray:
    wavelength = 2 * math.pi * base ** (np.arange(count) / count)
    smooth = np.clip((8192 / wavelength - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    return 1.0 / ((1 - smooth) / factor + smooth)


# Weights ---------------------------------------------------------------------------------------------


def _header(tensors: list[_Written]) -> bytes:
    """Of the safetensors file."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for each in tensors:
        start, end = end, end + each.bytes
        entries[each.name] = {
            "dtype": "F32" if each.exact else "BF16", "shape": list(each.tensor.shape), "data_offsets": [start, end],
        }  # fmt: skip
    encoded = json.dumps(entries, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded


def _is_weight(tensor: Tensor) -> bool:
    return tensor.name != _ROPE_FACTORS


def _written(gguf: GgufFile, config: dict[str, Any], tensor: Tensor, exact: bool) -> _Written:
    name = _hugging_face_name(gguf, tensor.name)
    if len(tensor.shape) > 2:
        raise GgufError(f"{gguf.path}: tensor {tensor.name} has shape {tensor.shape}; read are vectors and matrices")
    reordered = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    heads = reordered.get(tensor.name.split(".")[-2], 0) if config["model_type"] in _REORDERED else 0
    if heads and tensor.shape[0] % (2 * heads):
        raise GgufError(f"{gguf.path}: tensor {tensor.name} has {tensor.shape[0]} rows for {heads} heads")
    return _Written(name, tensor, heads, exact)


def _hugging_face_name(gguf: GgufFile, name: str) -> str:
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    parts = name.split(".")  # blk.<layer>.<what>.weight
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdigit() and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise GgufError(f"{gguf.path}: tensor {name} belongs to no supported family")


def _write_tensor(gguf: GgufFile, written: _Written, file: BinaryIO) -> None:
    tensor = written.tensor
    if written.heads:
        file.write(written.encoded(_halves_apart(gguf.values(tensor.name), written.heads)))
        return
    rows = tensor.shape[0]
    step = rows if len(tensor.shape) == 1 else max(1, _CHUNK_VALUES // tensor.shape[1])
    for first in range(0, rows, step):
        file.write(written.encoded(gguf.values(tensor.name, first, first + step)))


def _halves_apart(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo the file's order of q and k rows.

    GGUF rotates neighbours (0,1)(2,3)…, Hugging Face the two halves of a head: (0,h)(1,h+1)…
    """
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
