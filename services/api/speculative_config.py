"""Translates the JSON of --speculative-config, as users of other servers write it, into settings.

It knows the names that others use and their meaning here; ranges are checked by the settings.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from services.api.methods import AUTO, METHODS, OWN_FOLDER
from services.api.strategies import STRATEGIES

# Their key -> our row.
KEYS: dict[str, str] = {
    "method": "method",
    "speculate_method": "method",
    "model": "draft_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "num_model_steps": "num_model_steps",
    "speculate_max_draft_token_num": "num_speculative_tokens",
    "verify_strategy": "verify_strategy",
    "acceptance_method": "verify_strategy",
    "spec_decoding_acceptance_method": "verify_strategy",
    "rejection_sample_method": "verify_strategy",
    "accept_policy": "accept_policy",
    "max_candidate_len": "max_candidate_len",
    "speculate_max_candidate_len": "max_candidate_len",
    "verify_window": "verify_window",
    "speculate_verify_window": "verify_window",
    "typical_epsilon": "typical_epsilon",
    "posterior_threshold": "typical_epsilon",
    "typical_acceptance_sampler_posterior_threshold": "typical_epsilon",
    "typical_delta": "typical_delta",
    "posterior_alpha": "typical_delta",
    "typical_acceptance_sampler_posterior_alpha": "typical_delta",
    "max_ngram_size": "max_ngram_size",
    "prompt_lookup_max": "max_ngram_size",
    "speculate_max_ngram_size": "max_ngram_size",
    "min_ngram_size": "min_ngram_size",
    "prompt_lookup_min": "min_ngram_size",
    "suffix_decoding_max_tree_depth": "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests": "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor": "suffix_decoding_max_spec_factor",
    "suffix_decoding_max_spec_offset": "suffix_decoding_max_spec_offset",
    "suffix_decoding_min_token_prob": "suffix_decoding_min_token_prob",
    "draft_trees": "draft_trees",
    "speculative_token_tree": "draft_tree_shape",
    "medusa_choices": "draft_tree_shape",
}

# Row -> their value -> ours.
ALIASES: dict[str, dict[str, str]] = {
    "method": {alias: method.name for method in METHODS.values() for alias in method.aliases},
    "verify_strategy": {alias: strategy.name for strategy in STRATEGIES.values() for alias in strategy.aliases},
}

# FastDeploy's MTP with n-grams: `auto`, which asks the text drafters and the MTP block.
HYBRID_MTP, WITH_NGRAM = "hybrid_mtp_ngram", "with_ngram"

# Methods of other servers that are not served yet, for an error that doesn't look like a typing error.
METHODS_TO_COME = (
    "mlp_speculator",
)

# Their keys that only steer what is not served yet.
KEYS_TO_COME: dict[str, str] = {
    "draft_tensor_parallel_size": "tensor parallelism",
    "enable_draft_logprob": "drafters that give probabilities",
    "benchmark_mode": "the benchmark mode",
    "quantization": "draft models in another dtype than the model",
}


def translate(config: Mapping[str, Any]) -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """Row name -> (the key it came from, value), and what is wrong with the keys."""
    rows: dict[str, tuple[str, Any]] = {}
    problems: list[str] = []
    config = dict(config)
    if config.get("method", config.get("speculate_method")) == HYBRID_MTP:
        config["mtp_strategy"] = WITH_NGRAM
    if config.pop("parallel_drafting", False):
        # vLLM's word for a draft in one pass, with the method that the head is made of.
        if (method := config.pop("method", "eagle3")) != "eagle3":
            problems.append(f"parallel_drafting: is served with eagle3 heads, not with {method!r}")
        config["method"] = "block"
    strategy = config.pop("mtp_strategy", None)
    if strategy not in (None, "default", WITH_NGRAM):
        problems.append(f"mtp_strategy: {strategy!r} is not one of default, {WITH_NGRAM}")
    if strategy == WITH_NGRAM:
        config |= {"method": AUTO, "model": config.get("model") or OWN_FOLDER}
        config.pop("speculate_method", None)
    for key, value in config.items():
        problem = _key_problem(key) or _value_problem(key, value)
        if problem:
            problems.append(problem)
            continue
        row = KEYS[key]
        if isinstance(value, str):
            value = ALIASES.get(row, {}).get(value, value)
        elif row == "draft_tree_shape" and isinstance(value, list):
            value = json.dumps(value)
        if row in rows and rows[row][1] != value:
            problems.append(f"{key}: {value!r} contradicts {rows[row][1]!r} of {rows[row][0]}")
            continue
        rows.setdefault(row, (key, value))
    return rows, problems


def _key_problem(key: str) -> str:
    if key in KEYS:
        return ""
    if key in KEYS_TO_COME:
        return f"{key}: belongs to {KEYS_TO_COME[key]}, not served yet"
    close = difflib.get_close_matches(key, [*KEYS, *KEYS_TO_COME], n=1, cutoff=0.6)
    return f"{key}: no such key" + (f" (did you mean {close[0]}?)" if close else "")


def _value_problem(key: str, value: Any) -> str:
    if KEYS[key] == "method" and value in METHODS_TO_COME:
        return f"{key}: {value!r} is not served yet; served are {', '.join(METHODS)}"
    return ""
