"""What the settings ask for and what is loaded: facts, executors by name, options that cannot be."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from models.batch import Stretch
from models.sources import ModelError
from models.taps import FINAL, Tap
from services.worker.running.load_torch_model import Wanted, load_torch_model, vocabulary_of
from services.worker.running.memory_plan import cut_context
from services.worker.running.torch_model import TorchModel
from services.worker.scheduling.limits import limits_of

PAGE_BYTES = 2 * 3 * 4 * 16 * 16 * 4  # keys and values, layers, heads, head_dim, tokens, bytes


def test_models_with_one_tokenizer_have_one_vocabulary(tmp_path: Path) -> None:
    for name, tokenizer in (("a", b"{}"), ("b", b"{}"), ("c", b"[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_bytes(tokenizer)
    a, b, c = (vocabulary_of(tmp_path / name) for name in "abc")
    assert a == b != c and len(a) == 32 and vocabulary_of(tmp_path) == ""


def save_tiny(folder: Path, **changes: Any) -> LlamaForCausalLM:
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
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model.eval()


def load(folder: Path, taps: tuple[Tap, ...] = (), **changes: Any) -> TorchModel:
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "page_tokens": 16, "kv_cache_mb": 8}
    return load_torch_model(folder, Wanted(**(options | changes)), taps)


def test_facts_are_the_models_own(tmp_path: Path) -> None:
    theirs = save_tiny(tmp_path, eos_token_id=[7, 8])
    facts = load(tmp_path, max_context=100).facts
    assert (facts.vocab_size, facts.max_context, facts.page_tokens, facts.dtype) == (101, 100, 16, "float32")
    assert facts.eos_token_ids == (7, 8) and facts.path_name == tmp_path.name
    assert facts.parameters == sum(p.numel() for p in theirs.parameters())
    assert facts.pages + facts.branch_pages == (8 << 20) // PAGE_BYTES
    assert (facts.hidden_size, facts.pooling) == (64, "")


def test_a_folder_says_how_its_hidden_states_are_pooled(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert load(tmp_path).facts.pooling == "mean"


def test_the_same_bits_on_every_cpu_are_those_of_compiled_loops_alone(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    model = load(tmp_path, dtype="bfloat16", same_bits=True)
    assert model.executor.path == "compiled loops (portable)"
    # Pages may be handed to a worker on another processor.
    assert model.executor.computed_by == "compiled loops, the same bits"
    with pytest.raises(ModelError, match="determinism is portable, and this model is run by plain"):
        load(tmp_path, executor="plain", same_bits=True)


def test_a_drafter_computes_in_the_models_dtype_where_its_own_cannot_be_had(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path)
    wanted = Wanted(
        dtype="float32", draft_dtype="int8", executor="plain", threads=1, page_tokens=16, kv_cache_mb=8
    )
    assert load_torch_model(tmp_path, wanted, head=("draft_model", tmp_path)).head is not None
    assert "draft_dtype int8: plain torch computes in bfloat16 or float32" in caplog.text


def test_pages_from_free_memory_are_no_more_than_the_sequences_can_use(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    assert load(tmp_path, kv_cache_mb=0, max_sequences=3).facts.pages == 3 * 256 // 16


def test_a_context_that_the_pages_cut_is_said_with_how_much_memory_is_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path, max_position_embeddings=4096)
    cut = load(tmp_path, kv_cache_mb=1).facts.max_context
    (said,) = [each.getMessage() for each in caplog.records if "context" in each.getMessage()]
    assert said.startswith(f"the context is cut from 4096 to {cut} tokens")
    caplog.clear()
    enough = int(re.findall(r"--kv-cache-mb (\d+) is enough", said)[0])
    assert load(tmp_path, kv_cache_mb=enough).facts.max_context == 4096
    assert "context" not in caplog.text
    assert "more free memory is enough" in cut_context(100, 50, 0)


@pytest.mark.parametrize("executor", ["compiled", "plain"])
@pytest.mark.parametrize("strict", [True, False])
def test_the_executor_that_was_asked_for_runs_and_says_so(executor: str, strict: bool, tmp_path: Path) -> None:
    theirs = save_tiny(tmp_path)
    with torch.no_grad():
        expected = theirs(torch.tensor([[1, 2, 3]])).logits[0]
    model = load(tmp_path, executor=executor, strict=strict)
    assert {"compiled": "compiled loops", "plain": "plain torch"}[executor] in model.facts.path
    # Compiled loops keep the promise for nothing.
    assert model.facts.strict is (strict or executor == "compiled")
    logits = model.forward([Stretch([1, 2, 3], 0, [3], 0)]).logits
    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 0.02), ("int8", 0.05)])
def test_fewer_bits_stay_close(dtype: str, share: float, tmp_path: Path) -> None:
    theirs = save_tiny(tmp_path, num_key_value_heads=2, initializer_range=0.1)
    tokens = list(range(60))
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    logits = load(tmp_path, dtype=dtype).forward([Stretch(tokens, 0, [1, 2, 3, 4], 0)]).logits
    assert (logits - expected).abs().mean() <= share * expected.abs().mean()


def test_a_call_of_more_rows_than_one_run_takes_gives_all_their_logits(tmp_path: Path) -> None:
    theirs = save_tiny(tmp_path, max_position_embeddings=2048)
    tokens = [(i * 31) % 101 for i in range(1300)]
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    model = load(tmp_path, kv_cache_mb=64, threads=2)
    assert len(tokens) > 2 * model.executor.max_rows
    logits = model.forward([Stretch(tokens, 0, list(range(100)), 0)]).logits
    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_features_of_all_rows_come_in_the_order_of_the_call_however_it_is_cut(tmp_path: Path) -> None:
    """More rows than one run takes: a prompt, a tree in the middle, and a text of which nothing is wanted."""
    theirs = save_tiny(tmp_path, max_position_embeddings=2048)
    tokens, taps = [(i * 31) % 101 for i in range(600)], (FINAL, 0)
    with torch.no_grad():
        states = theirs(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[-1][0], states[1][0]], dim=1)
    model = load(tmp_path, taps, kv_cache_mb=64, threads=2)
    assert len(tokens) > model.executor.max_rows
    tree = Stretch([tokens[0], tokens[1], 7, tokens[2]], 0, [99], 4, [-1, -1, 0])
    output = model.forward([Stretch(tokens, 0, list(range(50)), 599), tree, Stretch(tokens[:9], 0, [98], 9)])
    assert output.logits.shape == (1, 101) and output.features is not None
    rows = [*range(600), 0, 1, 2, *range(9)]
    found = torch.cat([output.features[:602], output.features[603:]])
    assert (found - expected[rows]).abs().max() <= 1e-4 * expected.abs().max()


def test_features_are_kept_for_taps_alone_and_those_that_a_model_lacks_are_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    assert load(tmp_path).forward([Stretch([1, 2], 0, [3], 0)]).features is None
    with pytest.raises(ModelError, match="tap 9 is neither a layer"):
        load(tmp_path, (9,))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_cannot_run_here_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path)
    monkeypatch.setattr("models.choose.interpreter.in_use", lambda: False)
    with pytest.raises(ModelError, match="executor triton: there is no GPU"):
        load(tmp_path, executor="triton")
    with pytest.raises(ModelError, match=r"executor plain: .*bfloat16 or float32"):
        load(tmp_path, executor="plain", dtype="int8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float8"}, "float8"),
        ({"page_tokens": 12}, "page_tokens"),
        ({"max_context": 100_000}, "max_context is 100000"),
        ({"kv_cache_mb": 1, "page_tokens": 2048}, "kv_cache_mb 1 holds no KV page"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with pytest.raises(ModelError, match=said):
        load(tmp_path, **options)


def test_a_model_with_states_has_chains_and_memory_for_its_states_and_those_it_keeps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
        linear_value_head_dim=16, layer_types=["linear_attention", "full_attention"], max_position_embeddings=256,
        pad_token_id=None,
    )  # fmt: skip
    Qwen3_5ForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    caplog.set_level(logging.INFO, "specmesh.worker")
    facts = load(tmp_path, max_sequences=7, longest_draft=5).facts
    assert facts.path.startswith("compiled loops") and (facts.states, facts.branch_pages) == (7, 0)
    assert "7 more are kept for prefixes, drafts are chains" in caplog.text
    limits = limits_of(facts, max_sequences=9, prefix_cache=True)
    assert (limits.prefix_cache, limits.max_running, limits.first_snapshot, limits.snapshots) == (True, 7, 7, 7)
    # A state of 4 heads, and 5 + 3 rows of q, k, v, b and a; keys and values of the other layer.
    state, page = 4 * (4 * 16 * 16 + 8 * (2 * 32 + 64 + 2 * 4)), 2 * 2 * 16 * 16 * 4
    monkeypatch.setattr("services.worker.running.memory_plan.available_bytes", lambda: 10 << 20)
    few, many = (load(tmp_path, kv_cache_mb=0, max_sequences=n, longest_draft=5).facts for n in (100, 300))
    states = (300 + many.snapshots) - (100 + few.snapshots)
    assert few.snapshots == 100 < many.snapshots < 300
    assert few.pages - many.pages == pytest.approx(0.6 * states * state / page, abs=1)


def test_a_family_that_the_loops_run_is_not_left_to_plain_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=101, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16,
        v_head_dim=16, first_k_dense_replace=1, max_position_embeddings=128,
    )  # fmt: skip
    DeepseekV3ForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load(tmp_path).facts.path.startswith("compiled loops")
