"""Writes small GGUF files for tests, from the format's description alone: shares no code with the reader."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """Type and value: bool 7, int u32 4, float f32 6, str 8, list 9."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    kind = {str: 8, float: 6}.get(type(item[0]) if item else int, 5)
    body = b"".join(string(x) if kind == 8 else struct.pack("<i" if kind == 5 else "<f", x) for x in item)
    return struct.pack("<IIQ", 9, kind, len(item)) + body


def gguf_bytes(
    metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]], alignment: int = 32
) -> bytes:
    """tensors: name -> (shape as numpy has it, type number, raw bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, item in metadata.items():
        head += string(key) + value(item)
    offset, data = 0, b""
    for name, (shape, kind, raw) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in reversed(shape)) + struct.pack("<IQ", kind, offset)
        raw += b"\0" * (-len(raw) % alignment)
        data, offset = data + raw, offset + len(raw)
    return head + b"\0" * (-len(head) % alignment) + data


# A Llama small enough to write down ----------------------------------------------------------------------

HIDDEN, HEADS, KV_HEADS, WIDE, LAYERS, VOCAB = 32, 4, 2, 64, 2, 300


def byte_letters() -> list[str]:
    """The letters that stand for bytes 0..255 in byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = (chr(256 + i) for i in range(256))
    return [chr(byte) if byte in shown else next(hidden) for byte in range(256)]


def tiny_metadata() -> dict[str, Any]:
    letters = byte_letters()
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "he", "ll", "hell", "hello", "Ġhello"]
    tokens += [f"<unused{i}>" for i in range(VOCAB - len(tokens))]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
    kinds = [3] * 3 + [1] * (VOCAB - 3)
    return {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": WIDE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }


def interleave_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q and k as GGUF wants them: row 2i is i of the first half of a head, 2i+1 i of the second."""
    out = np.empty_like(weight)
    size = weight.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = weight[head * size + i]
            out[head * size + 2 * i + 1] = weight[head * size + size // 2 + i]
    return out


def tiny_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """By GGUF name, rows of q and k still as Hugging Face has them."""
    random = np.random.default_rng(seed)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (WIDE, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (WIDE, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, WIDE),
        }
    return {
        name: (random.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_tiny_gguf(path: Path, **changes: Any) -> dict[str, np.ndarray]:
    """A whole model in float32; `changes` replace metadata (None removes). Returns the weights."""
    metadata = {k: v for k, v in (tiny_metadata() | changes).items() if v is not None}
    weights = tiny_weights()
    tensors = {}
    for name, weight in weights.items():
        heads = HEADS if ".attn_q." in name else KV_HEADS if ".attn_k." in name else 0
        stored = interleave_halves(weight, heads) if heads else weight
        tensors[name] = (weight.shape, 0, stored.tobytes())
    path.write_bytes(gguf_bytes(metadata, tensors))
    return weights


def write_gguf_of(
    path: Path, architecture: str, tensors: dict[str, np.ndarray], sizes: dict[str, Any], **changes: Any
) -> None:
    """A float32 file of given tensors under GGUF names; `sizes` and `changes` are metadata below and beside the
    architecture's name. q and k of a Llama are put into the file's order."""
    metadata = {key: item for key, item in tiny_metadata().items() if not key.startswith("llama.")}
    metadata |= {"general.architecture": architecture, **{f"{architecture}.{k}": v for k, v in sizes.items()}}
    heads = {"attn_q": sizes["attention.head_count"], "attn_k": sizes["attention.head_count_kv"]}
    stored = {}
    for name, tensor in tensors.items():
        part = name.split(".")[-2]
        if architecture == "llama" and part in heads:
            tensor = interleave_halves(tensor, heads[part])
        stored[name] = (tensor.shape, 0, np.ascontiguousarray(tensor, np.float32).tobytes())
    path.write_bytes(gguf_bytes(metadata | changes, stored))


# Q4_1: 32 values a block; a step and a least value in float16, then codes: 16 low halves, then 16 high ones -------


def _q4_1_blocks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    blocks = values.astype(np.float32).reshape(-1, 32)
    least = blocks.min(1).astype(np.float16)
    step = ((blocks.max(1) - blocks.min(1)) / 15).astype(np.float16)
    scaled = (blocks - least[:, None].astype(np.float32)) / np.maximum(step, 1e-6)[:, None].astype(np.float32)
    return step, least, np.clip(np.rint(scaled), 0, 15).astype(np.uint8)


def encode_q4_1(values: np.ndarray) -> tuple[int, bytes]:
    """Type number and bytes of a matrix."""
    step, least, codes = _q4_1_blocks(values)
    packed = codes[:, :16] | (codes[:, 16:] << 4)
    heads = np.stack([step, least], axis=1).view(np.uint8)
    return 3, np.concatenate([heads, packed], axis=1).tobytes()


def q4_1_values(values: np.ndarray) -> np.ndarray:
    """What the codes of a matrix stand for, in float32."""
    step, least, codes = _q4_1_blocks(values)
    meant = codes * step[:, None].astype(np.float32) + least[:, None].astype(np.float32)
    return meant.reshape(values.shape)
