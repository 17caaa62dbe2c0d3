"""The keys and values of other servers, and what they are here. test_settings.py reads whole settings."""

from __future__ import annotations

from typing import Any

import pytest

from services.api.settings import ROWS, SettingsError, load_settings
from services.api.speculative_config import ALIASES, KEYS, KEYS_TO_COME, METHODS_TO_COME, translate


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
    assert problems == ["rejection_sample_method: 'rejection' contradicts 'block' of verify_strategy"]


def test_every_key_leads_to_a_row_and_every_alias_to_a_choice_of_it() -> None:
    assert set(KEYS.values()) <= set(ROWS)
    assert not set(KEYS) & set(KEYS_TO_COME)
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
        "parallel_drafting: is served with eagle3 heads, not with 'draft_model'"
    ]


def test_mtp_alone_is_mtp_and_other_strategies_are_refused() -> None:
    rows, problems = translate({"method": "mtp", "mtp_strategy": "default", "model": "/heads/mtp"})
    assert not problems and {name: value for name, (_, value) in rows.items()} == {
        "method": "mtp", "draft_model": "/heads/mtp",
    }  # fmt: skip
    assert translate({"method": "mtp", "mtp_strategy": "with_trees"})[1] == [
        "mtp_strategy: 'with_trees' is not one of default, with_ngram"
    ]
