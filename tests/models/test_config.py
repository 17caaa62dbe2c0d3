"""config.json as families read it: what is read, what is left to defaults, what is refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from models.config import Fields, read_network
from models.gguf import ENCODINGS
from models.gguf_tokenizer import _PRE_TOKENIZERS
from models.layers.rope import rope_tables
from models.registry import FAMILIES, GGUF_ARCHITECTURES, declaration
from models.sources import ModelError
from models.spec import Network, RopeScaling

FIELDS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> Network:
    (folder / "config.json").write_text(json.dumps(FIELDS | changes))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_network(folder)


def test_every_line_of_the_registry_names_a_function() -> None:
    for architecture in FAMILIES:
        assert callable(declaration(architecture))


def test_a_family_is_a_short_file() -> None:
    """What it needs more of is a part for all (models/layers/, models/spec.py) or a kernel."""
    models = Path(__file__).parents[2]
    files = {models / f"{place.partition(':')[0].replace('.', '/')}.py" for place in FAMILIES.values()}
    assert [file.name for file in files if len(file.read_text().splitlines()) > 120] == []


def test_the_page_of_models_names_all_that_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "use" / "models.md").read_text()
    encodings = [encoding.name for encoding in ENCODINGS.values()]
    for name in [*FAMILIES, *GGUF_ARCHITECTURES, *_PRE_TOKENIZERS, *encodings]:
        assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", page), name


def test_what_a_config_leaves_out_has_the_familys_default(tmp_path: Path) -> None:
    network = read(tmp_path)
    attention = network.layers[0].attention
    assert (attention.kv_heads, attention.head_dim, attention.rope.theta, attention.rope.scaling) == (4, 16, 1e4, None)
    assert network.head.parts[0].name == "lm_head" and not attention.qkv.bias and network.eos_token_ids == ()
    assert read(tmp_path, num_key_value_heads=None, head_dim=None).layers[0].attention == attention


def test_the_ends_of_the_generation_config_come_first(tmp_path: Path) -> None:
    assert read(tmp_path, eos_token_id=5).eos_token_ids == (5,)
    assert read(tmp_path, {"eos_token_id": [2, 0]}, eos_token_id=5).eos_token_ids == (2, 0)


def test_the_stored_dtype_has_two_names(tmp_path: Path) -> None:
    assert read(tmp_path, torch_dtype="bfloat16").stored_dtype == "bfloat16"
    assert read(tmp_path, torch_dtype="bfloat16", dtype="float16").stored_dtype == "float16"


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
ROPES: dict[str, dict[str, Any]] = {
    "new": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "old theta": {"rope_theta": 5e5},
    "old linear": {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "new linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "old llama3": {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "llama3 over all of the context": {"rope_scaling": {**LLAMA3, "rope_type": "llama3", "factor": 1.0}},
    "old yarn": {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}},
    "yarn of a longer context": {
        "max_position_embeddings": 4096,
        "rope_scaling": {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 128, "beta_fast": 32},
    },
    "yarn with both magnitudes": {
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn with one magnitude": {"rope_scaling": {"type": "yarn", "factor": 8.0, "mscale": 0.5}},
    "yarn with its attention factor": {"rope_scaling": {"type": "yarn", "factor": 8.0, "attention_factor": 1.5}},
    "yarn not truncated": {"rope_scaling": {"type": "yarn", "factor": 8.0, "truncate": False, "beta_slow": 2}},
    "yarn of a huge context": {
        "max_position_embeddings": 1 << 18,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1 << 16},
    },
    "yarn of a tiny context": {
        "rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4},
    },
}


@pytest.mark.parametrize("spelling", ROPES)
def test_tables_are_those_of_transformers_in_every_spelling(spelling: str, tmp_path: Path) -> None:
    rope = read(tmp_path, model_type="llama", **ROPES[spelling]).layers[1].attention.rope
    theirs = AutoConfig.from_pretrained(tmp_path)
    kind = theirs.rope_parameters["rope_type"]
    if kind == "default":
        frequencies = theirs.rope_parameters["rope_theta"] ** -(torch.arange(0, 16, 2) / 16)
        factor = 1.0
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](theirs)
    angles = torch.arange(200.0)[:, None] * frequencies

    cos, sin = rope_tables(rope, 200)

    torch.testing.assert_close(cos, angles.cos() * factor, rtol=0, atol=5e-5)
    torch.testing.assert_close(sin, angles.sin() * factor, rtol=0, atol=5e-5)


def test_yarn_stretches_the_context_that_the_model_was_trained_for(tmp_path: Path) -> None:
    """As Qwen2.5 is told to be run: the maximum stays what it was, the factor says the rest."""
    assert read(tmp_path, rope_scaling={"type": "yarn", "factor": 4.0}).max_context == 1024
    deepseek = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert read(tmp_path, rope_scaling=deepseek).max_context == 256
    assert read(tmp_path, rope_scaling={"type": "linear", "factor": 4.0}).max_context == 256


def test_llama3_is_read_with_all_its_numbers(tmp_path: Path) -> None:
    rope = read(tmp_path, rope_scaling={"rope_type": "llama3", **LLAMA3}).layers[0].attention.rope
    assert rope.scaling == RopeScaling("llama3", 8.0, 64, 1.0, 4.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["GPT2LMHeadModel"]),
        ("architectures", []),
        ("architectures", [["LlamaForCausalLM"]]),
        ("hidden_act", "gelu"),
        ("sliding_window", 4096),
        ("layer_types", ["full_attention", "full_attention"]),
        ("partial_rotary_factor", 0.5),
        ("rope_interleaved", True),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("dual_chunk_attention_config", {"chunk_size": 8}),
        ("hidden_size", -1),
        ("hidden_size", "64"),
        ("hidden_size", 1 << 40),
        ("vocab_size", 0),
        ("num_hidden_layers", True),
        ("num_key_value_heads", 3),
        ("head_dim", 12),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", 0),
        ("rope_theta", "10000"),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", 1),
        ("max_position_embeddings", 1 << 40),
        ("eos_token_id", "</s>"),
        ("eos_token_id", [1, -2]),
    ],
)
def test_what_is_not_computed_is_refused_by_name(field: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read(tmp_path, **{field: value})
    assert f"config.json: {field} is" in caught.value.what and caught.value.fix


@pytest.mark.parametrize(
    ("rope", "named"),
    [
        ([1], "rope_scaling"),
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "rope_type"),
        ({"type": "su"}, "type"),
        ({"rope_type": 3}, "rope_type"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": -1}, "factor"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": "32"}, "beta_fast"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 0}, "original_max_position_embeddings"),
        ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_type": "default", "mrope_section": [4, 4]}, "mrope_section"),
        ({"full_attention": {"rope_type": "default"}}, "rope_scaling"),
    ],
)
def test_a_rope_that_is_not_computed_is_refused_by_name(rope: object, named: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"config\.json: {named} is"):
        read(tmp_path, rope_scaling=rope)


@pytest.mark.parametrize(
    ("architecture", "field", "value"),
    [
        ("MistralForCausalLM", "attention_bias", True),
        ("MistralForCausalLM", "sliding_window", -1),
        ("MistralForCausalLM", "layer_types", ["sliding_attention"] * 2),
        ("Qwen2ForCausalLM", "layer_types", ["full_attention"]),
        ("Qwen2ForCausalLM", "layer_types", ["full_attention", "chunked_attention"]),
        ("Qwen3ForCausalLM", "layer_types", ["full_attention", ["full_attention"]]),
        ("Qwen3ForCausalLM", "layer_types", ["full_attention", "sliding_attention"]),
        ("Qwen3ForCausalLM", "use_sliding_window", "no"),
        ("Qwen3ForCausalLM", "max_window_layers", -1),
    ],
)
def test_each_family_refuses_what_it_does_not_compute(
    architecture: str, field: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=rf"config\.json: {field} is"):
        read(tmp_path, architectures=[architecture], **{field: value})


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("KimiLinearForCausalLM", "Kimi Linear's linear attention isn't served"),
        ("MambaForCausalLM", "Mamba's state-space recurrence isn't served"),
    ],
)
def test_a_family_that_is_not_served_is_refused_with_what_it_lacks(
    architecture: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as refused:
        read(tmp_path, architectures=[architecture])
    assert said in str(refused.value)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    for field in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        with pytest.raises(ModelError, match=field):
            read(tmp_path, **{field: None})


@pytest.mark.parametrize("raw", ["", "[]", "{", '{"a":' * 100_000, '{"\ud800"}', "null"])
def test_a_config_that_is_no_object_is_refused(raw: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(raw.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelError, match=r"config\.json"):
        read_network(tmp_path)


def test_a_refusal_stays_short_whatever_was_in_the_file() -> None:
    with pytest.raises(ModelError) as caught:
        Fields({"hidden_size": "x" * 1_000_000}).count("hidden_size")
    assert len(str(caught.value)) < 400
