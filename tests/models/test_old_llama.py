"""The old Llama, as services/target/torch_model.py loads it. Goes with it; parity of families is in their own tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from models.sources import ModelError
from services.target.torch_model import ForwardRows, TorchModel, load_torch_model

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_key_value_heads": 2},
    "one kv head": {"num_key_value_heads": 1, "head_dim": 24},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
}


def save_tiny(folder: Path, **changes: Any) -> LlamaForCausalLM:
    """A random model and the files a folder must have. transformers writes the weights."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
    }
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes)))
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model.eval()


def load(folder: Path, **changes: Any) -> TorchModel:
    options: dict[str, Any] = {
        "dtype": "float32",
        "threads": 1,
        "page_tokens": 16,
        "kv_cache_bytes": 8 << 20,
        "max_context": 0,
    }
    return load_torch_model(folder, **(options | changes))


def with_pages(model: TorchModel, tokens: list[int], start: int, logits_from: int) -> torch.Tensor:
    return model.forward([ForwardRows(tokens, start, list(range(2, 12)), logits_from)])


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(variant: str, tmp_path: Path) -> None:
    theirs = save_tiny(tmp_path, **VARIANTS[variant])
    ours = load(tmp_path)
    tokens = torch.randint(0, 101, (90,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]

    logits = with_pages(ours, tokens, 0, 0)

    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()
    # And token by token, over the same pages.
    with_pages(ours, tokens[:40], 0, 40)
    steps = torch.cat([with_pages(ours, [tokens[i]], i, 0) for i in range(40, 60)])
    assert torch.equal(steps, logits[40:60])


def test_bfloat16_stays_close(tmp_path: Path) -> None:
    theirs = save_tiny(tmp_path, num_key_value_heads=2, initializer_range=0.1)
    tokens = list(range(60))
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    logits = with_pages(load(tmp_path, dtype="bfloat16"), tokens, 0, 0)
    assert (logits - expected).abs().mean() <= 0.02 * expected.abs().mean()


def test_float16_weights_are_read(tmp_path: Path) -> None:
    theirs = save_tiny(tmp_path).half()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = theirs.float()(torch.tensor([[1, 2, 3]])).logits[0]
    assert (with_pages(load(tmp_path), [1, 2, 3], 0, 0) - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_shards_load_as_one_model(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    save_tiny(whole)
    model = save_tiny(cut)
    model.save_pretrained(cut, max_shard_size="100KB")
    (cut / "model.safetensors").unlink(missing_ok=True)
    assert len(list(cut.glob("*.safetensors"))) > 1
    assert torch.equal(with_pages(load(cut), [5, 6, 7], 0, 0), with_pages(load(whole), [5, 6, 7], 0, 0))


def test_facts_are_the_models_own(tmp_path: Path) -> None:
    theirs = save_tiny(tmp_path, eos_token_id=[7, 8])
    facts = load(tmp_path, max_context=100).facts
    assert (facts.vocab_size, facts.max_context, facts.page_tokens, facts.dtype) == (101, 100, 16, "float32")
    assert facts.eos_token_ids == (7, 8) and facts.path_name == tmp_path.name
    assert facts.parameters == sum(p.numel() for p in theirs.parameters())
    # A page: keys and values, 3 layers, 4 heads of 16, 16 tokens, 4 bytes.
    assert facts.pages == (8 << 20) // (2 * 3 * 4 * 16 * 16 * 4)
    assert load(tmp_path, max_context=100_000).facts.max_context == 256


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        (lambda f: edit_config(f, intermediate_size=97), r"mlp\.gate_proj\.weight has shape"),
        (lambda f: edit_config(f, vocab_size=200), r"embed_tokens\.weight has shape"),
        (lambda f: edit_config(f, num_hidden_layers=4), r"model\.layers\.3\..* is missing"),
        (lambda f: edit_config(f, attention_bias=True), r"q_proj\.bias is missing"),
        (lambda f: edit_config(f, hidden_act="relu"), "hidden_act"),
        (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    ],
)
def test_a_folder_that_does_not_fit_names_what_is_wrong(
    breaking: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path)
    breaking(tmp_path)
    with pytest.raises(ModelError, match=said):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"dtype": "float8"}, "float8"), ({"page_tokens": 12}, "page_tokens"), ({"kv_cache_bytes": 10}, "KV cache")],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with pytest.raises(ModelError, match=said):
        load(tmp_path, **options)
