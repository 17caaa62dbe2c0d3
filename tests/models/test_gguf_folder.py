"""From GGUF to a Hugging Face folder: names, the order of q and k rows, config, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import gguf_writer as writer
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models.gguf import GgufError, GgufFile
from models.gguf_folder import Conversion, convert

NAMES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors")


def converted(tmp_path: Path, **changes: object) -> tuple[Path, dict[str, np.ndarray]]:
    weights = writer.write_tiny_gguf(tmp_path / "tiny.gguf", **changes)
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(GgufFile(tmp_path / "tiny.gguf"), folder)
    return folder, weights


def test_weights_are_the_files_own_rounded_to_bfloat16(tmp_path: Path) -> None:
    folder, weights = converted(tmp_path)
    stored = load_file(folder / "model.safetensors")
    assert len(stored) == len(weights)
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "blk.1.attn_q": "model.layers.1.self_attn.q_proj",
        "blk.1.attn_k": "model.layers.1.self_attn.k_proj",
        "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
        "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
        "blk.1.attn_norm": "model.layers.1.input_layernorm",
        "blk.1.ffn_norm": "model.layers.1.post_attention_layernorm",
        "blk.1.ffn_gate": "model.layers.1.mlp.gate_proj",
        "blk.1.ffn_up": "model.layers.1.mlp.up_proj",
        "blk.1.ffn_down": "model.layers.1.mlp.down_proj",
    }
    for theirs, ours in names.items():
        # torch's own rounding is the oracle of ours.
        expected = torch.from_numpy(weights[f"{theirs}.weight"]).to(torch.bfloat16)
        assert torch.equal(stored[f"{ours}.weight"], expected), theirs


def test_asked_for_float32_every_value_is_what_the_files_codes_stand_for(tmp_path: Path) -> None:
    """Q4_1: a code of 4 bits times a float16, plus a float16: more bits than bfloat16 has."""
    weights = writer.tiny_weights()
    tensors = {name: (each.shape, *writer.encode_q4_1(each)) for name, each in weights.items() if each.ndim == 2}
    tensors |= {name: (each.shape, 0, each.tobytes()) for name, each in weights.items() if each.ndim == 1}
    (tmp_path / "q.gguf").write_bytes(writer.gguf_bytes(writer.tiny_metadata(), tensors))
    file = GgufFile(tmp_path / "q.gguf")
    folders = [tmp_path / "rounded", tmp_path / "exact"]
    for folder, exact in zip(folders, (False, True), strict=True):
        folder.mkdir()
        convert(file, folder, exact=exact)
    rounded, exact = (load_file(folder / "model.safetensors") for folder in folders)
    for theirs, ours in (("blk.0.ffn_up", "layers.0.mlp.up_proj"), ("token_embd", "embed_tokens")):
        meant = writer.q4_1_values(weights[f"{theirs}.weight"])
        assert torch.equal(exact[f"model.{ours}.weight"], torch.from_numpy(meant)), theirs
        assert not torch.equal(rounded[f"model.{ours}.weight"].float(), torch.from_numpy(meant)), theirs
    # Rows of q are in Hugging Face's order, whatever the type.
    assert all(torch.equal(exact[name].to(torch.bfloat16), each) for name, each in rounded.items())
    assert json.loads((folders[1] / "config.json").read_text())["dtype"] == "float32"
    assert sum((folders[1] / name).stat().st_size for name in NAMES) == Conversion(file, exact=True).bytes


def test_config_says_what_the_metadata_says(tmp_path: Path) -> None:
    folder, _ = converted(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]) == (32, 64, 2)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert config["rms_norm_eps"] == 1e-5  # not 9.99999974e-06, which float32 makes of it
    assert config["tie_word_embeddings"] is True and config["vocab_size"] == writer.VOCAB
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    assert template == "{{ messages[0]['content'] }}"


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    writer.write_tiny_gguf(tmp_path / "tiny.gguf")
    seen: list[tuple[str, int, int]] = []
    convert(GgufFile(tmp_path / "tiny.gguf"), tmp_path, lambda *step: seen.append(step))
    assert seen[-1][1] == seen[-1][2] == sum(2 * w.size for w in writer.tiny_weights().values())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": "mamba"}, "mamba"),
        ({"llama.block_count": None}, "llama.block_count"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.attn_factor": 0.5}, "attn_factor"),
        ({"llama.attention.sliding_window": 64}, "llama.attention.sliding_window"),
        ({"llama.attention.value_length": 4}, "llama.attention.value_length"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count"),
        ({"llama.expert_count": 8}, "llama.expert_count"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer model 't5'"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.scores"),
        ({"tokenizer.ggml.pre": "tekken"}, "tekken"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["zz qq"]}, "outside the vocabulary"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "twice"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(GgufError, match=said):
        converted(tmp_path, **changes)


def test_llama3_rope_factors_become_their_parameters(tmp_path: Path) -> None:
    from models.gguf_folder import model_config
    from models.layers.rope import rope_tables
    from models.spec import Rope, RopeScaling

    def table(scaling: RopeScaling | None) -> torch.Tensor:
        cos, sin = rope_tables(Rope(64, 500000.0, scaling), 2)
        return torch.atan2(sin[1], cos[1])

    # What a converter stores: plain frequency over scaled frequency. Angles of position 1 are frequencies.
    factors = (table(None) / table(RopeScaling("llama3", 32.0, 8192, 1.0, 4.0))).numpy()
    metadata = writer.tiny_metadata() | {"llama.rope.freq_base": 500000.0}
    raw = writer.gguf_bytes(metadata, {"rope_freqs.weight": ((32,), 0, factors.tobytes())})
    (tmp_path / "a.gguf").write_bytes(raw)

    config = model_config(GgufFile(tmp_path / "a.gguf"))

    assert config["rope_scaling"]["rope_type"] == "llama3" and config["rope_scaling"]["factor"] == 32.0
