"""The keys and values of other servers, and what they are here. test_settings.py reads whole settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.api.settings import ROWS, SettingsError, load_settings
from services.api.speculative_config import (
    ALIASES,
    FLAGS,
    KEYS,
    KEYS_TO_COME,
    METHODS_TO_COME,
    WITHOUT_EFFECT,
    translate,
)


def rows(**config: Any) -> dict[str, Any]:
    found, problems = translate(config)
    assert problems == []
    return {name: value for name, (_, value) in found.items()}


def test_the_verification_of_fastdeploy_is_served_under_its_own_names() -> None:
    config = {"verify_strategy": "topp", "max_candidate_len": 4, "verify_window": 3, "accept_policy": "reject_all"}
    assert rows(**config) == config
    older = rows(speculate_max_candidate_len=4, speculate_verify_window=3)
    assert older == {"max_candidate_len": 4, "verify_window": 3}


@pytest.mark.parametrize(
    ("key", "value", "ours"),
    [
        ("acceptance_method", "rejection_sampler", "rejection"),
        ("acceptance_method", "typical_acceptance_sampler", "typical"),
        ("spec_decoding_acceptance_method", "typical_acceptance_sampler", "typical"),
        ("rejection_sample_method", "standard", "rejection"),
        ("rejection_sample_method", "probabilistic", "rejection"),
        ("rejection_sample_method", "strict", "target_match"),
        ("rejection_sample_method", "block", "block"),
        ("verify_strategy", "rejection_sampler", "rejection"),
    ],
)
def test_the_acceptance_methods_of_vllm_are_strategies_of_ours(key: str, value: str, ours: str) -> None:
    assert rows(**{key: value}) == {"verify_strategy": ours}


@pytest.mark.parametrize("before", ["", "typical_acceptance_sampler_"])
def test_the_posterior_numbers_of_vllm_are_those_of_typical(before: str) -> None:
    config = {f"{before}posterior_threshold": 0.1, f"{before}posterior_alpha": 0.4}
    assert rows(**config) == {"typical_epsilon": 0.1, "typical_delta": 0.4}


def test_a_whole_json_of_vllm_comes_through_as_settings() -> None:
    config = (
        '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3,'
        ' "acceptance_method": "typical_acceptance_sampler", "posterior_threshold": 0.2, "posterior_alpha": 0.5}'
    )
    settings = load_settings({"speculative_config": config})
    assert (settings.verify_strategy, settings.typical_epsilon, settings.typical_delta) == ("typical", 0.2, 0.5)
    assert settings.origin("typical_delta") == "flag --speculative-config, posterior_alpha"


def test_a_posterior_threshold_of_0_is_refused_with_its_key_and_range() -> None:
    with pytest.raises(SettingsError, match="posterior_threshold: 0 is not a number above 0 and up to 1"):
        load_settings({"speculative_config": '{"posterior_threshold": 0}'})


def test_two_names_of_one_strategy_agree_and_two_strategies_do_not() -> None:
    assert rows(verify_strategy="rejection", acceptance_method="rejection_sampler") == {"verify_strategy": "rejection"}
    _, problems = translate({"verify_strategy": "block", "rejection_sample_method": "standard"})
    assert problems == [("rejection_sample_method", "'rejection' contradicts 'block' of verify_strategy")]


def test_every_key_leads_to_a_row_and_every_alias_to_a_choice_of_it() -> None:
    assert set(KEYS.values()) <= set(ROWS)
    assert len({*KEYS, *KEYS_TO_COME, *WITHOUT_EFFECT}) == len(KEYS) + len(KEYS_TO_COME) + len(WITHOUT_EFFECT)
    assert {*FLAGS.values()} <= {*KEYS, *KEYS_TO_COME, *WITHOUT_EFFECT}
    for row, values in ALIASES.items():
        assert set(values.values()) <= set(ROWS[row].choices)
        assert not set(values) & set(ROWS[row].choices)
    assert not set(METHODS_TO_COME) & set(ROWS["method"].choices)


def test_the_keys_of_suffix_decoding_come_through_as_they_are_written() -> None:
    config = (
        '{"method": "suffix", "num_speculative_tokens": 16, "suffix_decoding_max_tree_depth": 24,'
        ' "suffix_decoding_max_cached_requests": -1, "suffix_decoding_max_spec_factor": 4.0,'
        ' "suffix_decoding_max_spec_offset": 1, "suffix_decoding_min_token_prob": 0.2}'
    )
    settings = load_settings({"speculative_config": config})
    assert (settings.method, settings.num_speculative_tokens) == ("suffix", 16)
    assert settings.suffix_decoding_max_tree_depth == 24
    assert settings.suffix_decoding_max_cached_requests == -1
    assert (settings.suffix_decoding_max_spec_factor, settings.suffix_decoding_max_spec_offset) == (4.0, 1.0)
    assert settings.suffix_decoding_min_token_prob == 0.2


def test_without_being_told_suffix_decoding_learns_in_each_namespace_and_requests_can_be_bounded() -> None:
    assert load_settings({"method": "suffix"}).suffix_decoding_max_cached_requests == -1
    config = '{"method": "suffix", "suffix_decoding_max_cached_requests": 0}'
    assert load_settings({"speculative_config": config}).suffix_decoding_max_cached_requests == 0


def test_mtp_with_ngrams_is_auto_with_the_models_own_block() -> None:
    theirs = {"method": "mtp", "num_model_steps": 2, "mtp_strategy": "with_ngram", "num_speculative_tokens": 5}
    rows, problems = translate(theirs)
    assert not problems
    assert {name: value for name, (_, value) in rows.items()} == {
        "method": "auto", "draft_model": "own", "num_model_steps": 2, "num_speculative_tokens": 5,
    }  # fmt: skip
    older, problems = translate({"speculate_method": "hybrid_mtp_ngram", "speculate_max_draft_token_num": 5})
    assert not problems and older["method"][1] == "auto" and older["draft_model"][1] == "own"


def test_eagle3_with_parallel_drafting_is_block() -> None:
    theirs = {"method": "eagle3", "model": "/heads/p", "num_speculative_tokens": 7, "parallel_drafting": True}
    rows, problems = translate(theirs)
    assert not problems and {name: value for name, (_, value) in rows.items()} == {
        "method": "block", "draft_model": "/heads/p", "num_speculative_tokens": 7,
    }  # fmt: skip
    assert translate(theirs | {"parallel_drafting": False})[0]["method"][1] == "eagle3"
    assert translate(theirs | {"method": "draft_model"})[1] == [
        ("parallel_drafting", "is served with eagle3 heads, not with 'draft_model'")
    ]


def test_mtp_alone_is_mtp_and_other_strategies_are_refused() -> None:
    rows, problems = translate({"method": "mtp", "mtp_strategy": "default", "model": "/heads/mtp"})
    assert not problems and {name: value for name, (_, value) in rows.items()} == {
        "method": "mtp", "draft_model": "/heads/mtp",
    }  # fmt: skip
    assert translate({"method": "mtp", "mtp_strategy": "with_trees"})[1] == [
        ("mtp_strategy", "'with_trees' is not one of default, with_ngram")
    ]


MTP, HEAD = "/models/mtp", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
# What the pages of other servers tell their users to write -> our settings, or the name of what is missing.
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any] | str]] = {
    "FastDeploy, MTP": (
        {"method": "mtp", "num_speculative_tokens": 1, "model": MTP},
        {"method": "mtp", "num_speculative_tokens": 1, "draft_model": MTP},
    ),
    "FastDeploy, MTP inside the model's folder": (
        {"method": "mtp", "accept_policy": "accept_all", "num_speculative_tokens": 1},
        {"method": "mtp", "accept_policy": "accept_all", "num_speculative_tokens": 1},
    ),
    "FastDeploy, greedy verification": (
        {"method": "mtp", "verify_strategy": "greedy", "num_speculative_tokens": 1, "model": MTP},
        {"method": "mtp", "verify_strategy": "greedy", "num_speculative_tokens": 1, "draft_model": MTP},
    ),
    "FastDeploy, MTP and n-grams": (
        {
            "method": "mtp", "num_model_steps": 2, "mtp_strategy": "with_ngram", "num_speculative_tokens": 5,
            "model": MTP,
        },
        {"method": "auto", "num_model_steps": 2, "num_speculative_tokens": 5, "draft_model": MTP},
    ),
    "FastDeploy, n-grams": (
        {"method": "ngram", "num_speculative_tokens": 1, "model": "/models/target"},
        {"method": "ngram", "num_speculative_tokens": 1},
    ),
    "FastDeploy, n-grams by their older name": ({"method": "ngram_match"}, {"method": "ngram"}),
    "FastDeploy, suffixes": (
        {
            "method": "suffix", "num_speculative_tokens": 4, "suffix_decoding_max_tree_depth": 32,
            "suffix_decoding_max_cached_requests": 10000, "suffix_decoding_max_spec_factor": 2.0,
            "suffix_decoding_min_token_prob": 0.2,
        },
        {
            "method": "suffix", "num_speculative_tokens": 4, "suffix_decoding_max_tree_depth": 32,
            "suffix_decoding_max_cached_requests": 10000, "suffix_decoding_max_spec_factor": 2.0,
            "suffix_decoding_min_token_prob": 0.2,
        },
    ),
    "FastDeploy, the keys of suffixes beside MTP": (
        {
            "method": "mtp", "num_speculative_tokens": 4, "suffix_decoding_max_tree_depth": 64,
            "suffix_decoding_max_cached_requests": 10000, "suffix_decoding_max_spec_factor": 1.0,
            "suffix_decoding_min_token_prob": 0.1,
        },
        {"method": "mtp", "num_speculative_tokens": 4, "suffix_decoding_max_cached_requests": 10000},
    ),
    "FastDeploy, n-grams without a model": (
        {"method": "ngram", "num_speculative_tokens": 1}, {"method": "ngram", "num_speculative_tokens": 1},
    ),
    "FastDeploy, no drafts": (
        {"method": "naive", "num_speculative_tokens": 1}, {"method": "naive", "num_speculative_tokens": 1},
    ),
    "FastDeploy, pages": (
        {"method": "mtp", "num_gpu_block_expand_ratio": 1, "benchmark_mode": False, "quantization": None},
        {"method": "mtp"},
    ),
    "FastDeploy, wint8": (
        {"method": "mtp", "quantization": "wint8"}, {"method": "mtp", "draft_dtype": "int8"},
    ),
    "FastDeploy, WINT8": ({"method": "mtp", "quantization": "WINT8"}, {"method": "mtp", "draft_dtype": "int8"}),
    "FastDeploy, WINT4": ({"method": "mtp", "quantization": "WINT4"}, {"method": "mtp", "draft_dtype": "int8"}),
    "FastDeploy, a8w8_fp8": ({"method": "mtp", "quantization": "a8w8_fp8"}, {"method": "mtp"}),
    "FastDeploy, block_wise_fp8": (
        {"method": "mtp", "quantization": {"quantization": "block_wise_fp8"}},
        "quantization: not served: making {'quantization': 'block_wise_fp8'} of a drafter; int8 is",
    ),
    "vLLM, EAGLE": (
        {"model": HEAD, "draft_tensor_parallel_size": 1, "num_speculative_tokens": 2, "method": "eagle3"},
        {"method": "eagle3", "draft_model": HEAD, "num_speculative_tokens": 2},
    ),
    "vLLM, over two devices": (
        {"model": HEAD, "draft_tensor_parallel_size": 2, "method": "eagle3"},
        "draft_tensor_parallel_size: not served: a drafter that is split over several devices",
    ),
    "vLLM, Qwen3-Next": (
        {"method": "qwen3_next_mtp", "num_speculative_tokens": 2},
        {"method": "mtp", "num_speculative_tokens": 2},
    ),
    "vLLM, DFlash": (
        {"method": "dflash", "model": HEAD, "num_speculative_tokens": 15},
        {"method": "dflash", "draft_model": HEAD, "num_speculative_tokens": 15},
    ),
    "vLLM, sampled drafts": (
        {"method": "eagle3", "model": HEAD, "draft_sample_method": "probabilistic"},
        "draft_sample_method: not served: sampled drafts with every verify strategy; with rejection and block they are",
    ),
    "vLLM, how a drafter runs": (
        {"method": "draft_model", "model": "/m", "enforce_eager": True, "attention_backend": "FLASH_ATTN",
         "draft_sample_method": "greedy", "revision": "main", "enable_adaptive_verification": False},
        {"method": "draft_model", "draft_model": "/m"},
    ),
    "vLLM, n-grams on a GPU": ({"method": "ngram_gpu"}, {"method": "ngram"}),
    "SGLang, DFlash": (
        {"--speculative-algorithm": "DFLASH", "--speculative-draft-model": HEAD},
        {"method": "dflash", "draft_model": HEAD},
    ),
    "LMDeploy, EAGLE-3": (
        {
            "--speculative-algorithm": "eagle3", "--speculative-draft-model": HEAD,
            "--speculative-num-draft-tokens": "3",
        },
        {"method": "eagle3", "draft_model": HEAD, "num_speculative_tokens": 3},
    ),
    "LMDeploy, MTP": (
        {"--speculative-algorithm": "deepseek_mtp", "--speculative-num-draft-tokens": "3"},
        {"method": "mtp", "num_speculative_tokens": 3},
    ),
    "LMDeploy, EAGLE": ({"--speculative-algorithm": "eagle"}, {"method": "eagle"}),
    "LMDeploy, Qwen3.5": (
        {"--speculative-algorithm": "qwen3_5_mtp"},
        {"method": "mtp"},
    ),
    "LMDeploy, Hunyuan": (
        {"--speculative-algorithm": "hy3_mtp"},
        "flag --speculative-algorithm: 'hy3_mtp' needs the model family Hunyuan 3, which isn't served",
    ),
    "PaddleNLP, n-grams": (
        {
            "--speculate_method": "inference_with_reference", "--speculate_max_draft_token_num": "5",
            "--speculate_max_ngram_size": "1",
        },
        {"method": "ngram", "num_speculative_tokens": 5, "max_ngram_size": 1, "min_ngram_size": 1},
    ),
    "PaddleNLP, MTP": (
        {
            "--speculate_method": "mtp", "--draft_model_name_or_path": MTP, "--speculate_max_draft_token_num": "1",
            "--return_full_hidden_states": "1", "--draft_model_quant_type": "",
        },
        {"method": "mtp", "draft_model": MTP, "num_speculative_tokens": 1},
    ),
    "PaddleNLP, a quantized MTP": (
        {"--speculate_method": "mtp", "--draft_model_quant_type": "weight_only_int8"},
        {"method": "mtp", "draft_dtype": "int8"},
    ),
    "PaddleNLP, verification": (
        {"--speculate_method": "eagle", "--speculate_verify_window": "3", "--speculate_max_candidate_len": "4"},
        {"method": "eagle", "verify_window": 3, "max_candidate_len": 4},
    ),
    "PaddleNLP, hydra": ({"--speculate_method": "hydra"}, {"method": "hydra"}),
    "PaddleNLP, draft model": (
        {"--speculate_method": "draft_model", "--draft_model_name_or_path": "/models/small"},
        {"method": "draft_model", "draft_model": "/models/small"},
    ),
    "PaddleNLP, no drafts": ({"--speculate_method": "autoregressive"}, {"method": "naive"}),
}  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours"), EXAMPLES.values(), ids=EXAMPLES)
def test_what_other_servers_tell_to_write_is_served_or_says_what_is_missing(
    theirs: dict[str, Any], ours: dict[str, Any] | str
) -> None:
    given = theirs if next(iter(theirs)).startswith("--") else {"speculative_config": json.dumps(theirs)}
    if isinstance(ours, str):
        with pytest.raises(SettingsError) as refused:
            load_settings(given)
        assert ours in str(refused.value)
        return
    settings = load_settings(given)
    default = dict(load_settings())
    found = {name: value for name, value in settings if value != default[name] and name != "speculative_config"}
    assert found == {name: value for name, value in ours.items() if value != default[name]}


def test_a_model_beside_a_method_that_has_none_is_told() -> None:
    settings = load_settings({"speculative_config": '{"method": "ngram", "model": "/m"}'})
    assert settings.notes == ("flag --speculative-config, model: without effect: ngram uses no model",)
    assert settings.draft_model == ""
    for used in ('{"method": "mtp", "model": "/m"}', '{"method": "ngram"}', '{"method": "ngram", "model": null}'):
        assert load_settings({"speculative_config": used}).notes == ()


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"quantization": "WINT4"}, "quantization: int8 instead: only the model's own weights are made of 4 bits"),
        ({"num_gpu_block_expand_ratio": 1}, "num_gpu_block_expand_ratio: without effect: "),
        ({"return_full_hidden_states": True}, "return_full_hidden_states: without effect: "),
    ],
)
def test_what_is_something_else_here_is_told(config: dict[str, Any], note: str) -> None:
    (told,) = load_settings({"speculative_config": json.dumps({"method": "mtp", **config})}).notes
    assert told.startswith(f"flag --speculative-config, {note}")


@pytest.mark.parametrize("off", [False, None, "0"])
def test_a_key_without_effect_that_asks_for_nothing_is_not_told(off: Any) -> None:
    assert load_settings({"speculative_config": json.dumps({"return_full_hidden_states": off})}).notes == ()


def test_keys_of_another_method_beside_a_fixed_one_are_told() -> None:
    """FastDeploy's page writes mtp over the keys of suffix decoding."""

    def notes(**config: Any) -> tuple[str, ...]:
        return load_settings({"speculative_config": json.dumps(config)}).notes

    key = "flag --speculative-config, suffix_decoding_max_tree_depth"
    note = key + ": {} doesn't read it; requests that ask for suffix do"
    assert notes(method="mtp", suffix_decoding_max_tree_depth=64) == (note.format("mtp"),)
    assert notes(method="ngram_match", suffix_decoding_max_tree_depth=64) == (note.format("ngram_match"),)
    for reader in ("suffix", "auto", "hybrid"):
        assert notes(method=reader, suffix_decoding_max_tree_depth=64) == ()
    assert notes(method="mtp", mtp_strategy="with_ngram", max_ngram_size=3) == ()
    assert notes(suffix_decoding_max_tree_depth=64) == ()


def test_another_servers_flag_and_the_json_must_agree() -> None:
    both = {"--speculative-algorithm": "eagle3", "speculative_config": '{"method": "mtp"}'}
    with pytest.raises(SettingsError, match="flag --speculative-algorithm: 'eagle3' contradicts 'mtp' of flag"):
        load_settings(both)
