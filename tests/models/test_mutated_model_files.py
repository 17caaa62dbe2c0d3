"""Random changes of a tiny GGUF file and a tiny safetensors file: each is refused with a `ModelError`, or the tensors
whose values and places the change left alone have their own values. Memory stays bounded."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf_writer as writer
import pytest
import torch
from safetensors.torch import load_file
from tiny_folder import write_tiny_model

from models.errors import ModelError
from models.gguf import GgufError, GgufFile
from models.gguf_folder import Conversion
from models.sources import ensure_model
from models.tensor_headers import read_headers
from models.weights import Weights

MUTATIONS = 200
# Values that have broken readers: around the ends of what the number types hold, and types of GGUF values.
_WORDS = [0, 1, 2, 6, 7, 8, 9, 10, 12, 31, 1 << 16, (1 << 20) + 1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63]


def peak_kb() -> int:
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1])


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """Whatever a file claims, little is allocated for it. The peak is of this test, whatever ran before."""
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_kb()
    yield
    assert peak_kb() - before < 300 << 10


def mutated(source: random.Random, raw: bytes, reach: int) -> bytes:
    """One to four changes among the first `reach` bytes."""
    made = bytearray(raw)
    for _ in range(source.choice((1, 1, 2, 4))):
        at = source.randrange(reach)
        match source.randrange(5):
            case 0:
                made[at] ^= 1 << source.randrange(8)
            case 1:
                made[at : at + 8] = struct.pack("<Q", source.choice(_WORDS))
            case 2:
                made[at : at + 4] = struct.pack("<I", source.choice(_WORDS) & 0xFFFFFFFF)
            case 3:
                other, length = source.randrange(reach), source.randrange(1, 40)
                made[at : at + length] = raw[other : other + length]
            case _:
                del made[at : at + source.randrange(1, 20)]
    return bytes(made)


# GGUF -----------------------------------------------------------------------------------------------------


def small_gguf(path: Path, tokenizer: str) -> None:
    """A whole model with few tokens, so that changes often meet sizes, types and names."""
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "▁"]
    tokens += [f"<u{number}>" for number in range(writer.VOCAB - len(tokens))]
    kinds = [2, 3, 3] + [1] * (writer.VOCAB - 3)
    changes: dict[str, object] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    if tokenizer == "llama":
        changes |= {"tokenizer.ggml.scores": [0.0] * writer.VOCAB, "tokenizer.ggml.merges": None}
    else:
        changes |= {"tokenizer.ggml.merges": ["a b"]}
    writer.write_tiny_gguf(path, **{"tokenizer.ggml.model": tokenizer, **changes})


def places(file: GgufFile) -> dict[str, tuple[object, ...]]:
    return {name: (each.shape, each.encoding.name, each.start) for name, each in file.tensors.items()}


@pytest.mark.parametrize("tokenizer", ["gpt2", "llama"])
def test_a_mutated_gguf_file_is_refused_or_its_tensors_are_right(
    tmp_path: Path, tokenizer: str, bounded_memory: None
) -> None:
    path, cache, source = tmp_path / "tiny.gguf", tmp_path / "cache", random.Random(f"gguf {tokenizer}")
    small_gguf(path, tokenizer)
    whole = path.read_bytes()
    untouched = places(GgufFile(path))
    right = load_file(ensure_model(str(path), cache) / "model.safetensors")
    wheres = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.1.attn_q.weight": "model.layers.1.self_attn.q_proj.weight",
    }
    head = min(place[2] for place in untouched.values())  # type: ignore[type-var]
    # Sizes and types are in the first few hundred bytes and in the heads of tensors; most of the rest are tokens.
    ends = [(0, 900), (head - 1600, head)]
    converted = 0
    for _ in range(MUTATIONS):
        begin, end = source.choice(ends)
        path.write_bytes(whole[:begin] + mutated(source, whole[begin:], end - begin))
        try:
            folder = ensure_model(str(path), cache)
        except ModelError as error:
            assert error.what and error.fix
            continue
        made, now = load_file(folder / "model.safetensors"), places(GgufFile(path))
        for theirs, ours in wheres.items():
            if now.get(theirs) == untouched[theirs] and len(path.read_bytes()) == len(whole):
                assert torch.equal(made[ours], right[ours]), theirs
                converted += 1
        shutil.rmtree(folder)
    assert converted > MUTATIONS // 20


# safetensors ----------------------------------------------------------------------------------------------


def test_a_mutated_safetensors_file_is_refused_or_its_tensors_are_right(tmp_path: Path, bounded_memory: None) -> None:
    folder, source = write_tiny_model(tmp_path / "model"), random.Random("safetensors")
    path = folder / "model.safetensors"
    whole, right, untouched = path.read_bytes(), load_file(path), read_headers(path)
    head = 8 + struct.unpack_from("<Q", whole)[0]
    read = 0
    for _ in range(MUTATIONS):
        path.write_bytes(mutated(source, whole, head))
        try:
            weights, headers = Weights(folder), read_headers(path)
        except ModelError as error:
            assert error.what and error.fix
            continue
        for name, header in headers.items():
            if header == untouched.get(name):
                assert torch.equal(weights.take(name, *header.shape), right[name]), name
                read += 1
    assert read > MUTATIONS // 20


def lists(size: int) -> bytes:
    """A list of empty lists, of so many bytes: in memory it has twenty times as many."""
    return b"[" + b"[]," * (size // 3 - 1) + b"[]]"


def test_a_header_of_empty_lists_is_not_read_into_memory(tmp_path: Path, bounded_memory: None) -> None:
    path = tmp_path / "model.safetensors"
    for size in (15 << 20, 80 << 20):
        header = b'{"a": ' + lists(size) + b"}"
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        with pytest.raises(ModelError, match="header"):
            read_headers(path)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors.index.json"]
)
def test_json_of_empty_lists_is_not_read_into_memory(tmp_path: Path, name: str, bounded_memory: None) -> None:
    folder = write_tiny_model(tmp_path / "model")
    before = (folder / name).read_bytes() if (folder / name).exists() else b'{"weight_map": {}}'
    (folder / name).write_bytes(before.rstrip()[:-1] + b', "x": ' + lists(60 << 20) + b"}")
    with pytest.raises(ModelError, match=rf"{name} cannot be read: it has \d+ lists"):
        ensure_model(str(folder), tmp_path / "cache")


# Metadata -------------------------------------------------------------------------------------------------

NASTY: list[Any] = [
    None, True, False, 0, 1, 7, (1 << 32) - 1, 0.5, -1.0, 4.0, float("nan"), float("inf"), "", "x", "²" * 1000, [],
    ["x"], [1], [-1], [0.5], ["x"] * 300, [7] * 300,
]  # fmt: skip
MORE_KEYS = (
    "llama.attention.key_length", "llama.rope.scaling.type", "llama.rope.scaling.factor", "tokenizer.ggml.scores",
    "tokenizer.ggml.add_bos_token", "tokenizer.ggml.unknown_token_id", "general.alignment", "llama.expert_count",
)  # fmt: skip


@pytest.mark.parametrize("key", [*writer.tiny_metadata(), *MORE_KEYS])
def test_any_value_of_any_metadata_is_converted_or_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "tiny.gguf"
    for value in NASTY:
        writer.write_tiny_gguf(path, **{key: value})
        try:
            Conversion(GgufFile(path))
        except GgufError as error:
            assert "tiny.gguf" in str(error)


def test_a_metadata_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.gguf"
    raw = writer.gguf_bytes({"a": 1, "b": 2}, {})
    path.write_bytes(raw.replace(writer.string("b"), writer.string("a")))
    with pytest.raises(GgufError, match="metadata a twice"):
        GgufFile(path)


def test_a_vocabulary_that_can_be_joined_in_endless_ways_is_refused(tmp_path: Path) -> None:
    path, tokens = tmp_path / "runs.gguf", ["a" * (1 + number) for number in range(writer.VOCAB)]
    changes = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.merges": None}
    lists = {"tokens": tokens, "token_type": [1] * writer.VOCAB, "scores": [0.0] * writer.VOCAB}
    writer.write_tiny_gguf(path, **changes, **{f"tokenizer.ggml.{name}": each for name, each in lists.items()})
    with pytest.raises(GgufError, match="more than 2400 ways"):
        Conversion(GgufFile(path))
