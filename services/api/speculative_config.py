"""Translates the JSON of --speculative-config, and other servers' flags for speculation, into settings.

It knows the names that others use and their meaning here; ranges are checked by the settings.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from models.heads.sources import OWN_FOLDER
from services.api.methods import AUTO, METHODS
from services.api.strategies import STRATEGIES

# Their key -> our row.
KEYS: dict[str, str] = {
    "method": "method",
    "speculate_method": "method",
    "model": "draft_model",
    "draft_model_name_or_path": "draft_model",
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
    "quantization": "draft_dtype",
    "draft_model_quant_type": "draft_dtype",
}

# Whose keys they are; the others are those of vLLM and FastDeploy. What isn't listed anywhere is a name of ours.
_OF: dict[str, tuple[str, ...]] = {
    "vLLM": (
        "prompt_lookup_max", "prompt_lookup_min", "acceptance_method", "spec_decoding_acceptance_method",
        "rejection_sample_method", "posterior_threshold", "posterior_alpha", "speculative_token_tree",
        "typical_acceptance_sampler_posterior_threshold", "typical_acceptance_sampler_posterior_alpha",
        "draft_tensor_parallel_size", "draft_sample_method", "max_model_len", "revision", "disable_by_batch_size",
        "enable_adaptive_verification", "enforce_eager", "attention_backend", "moe_backend",
        "disable_padded_drafter_batch", "use_local_argmax_reduction", "parallel_drafting",
    ),
    "FastDeploy": (
        "max_ngram_size", "min_ngram_size", "verify_strategy", "accept_policy", "max_candidate_len", "verify_window",
        "num_model_steps", "enable_draft_logprob", "benchmark_mode", "num_gpu_block_expand_ratio", "mtp_strategy",
    ),
    "PaddleNLP": (
        "speculate_method", "speculate_max_draft_token_num", "speculate_max_ngram_size", "speculate_verify_window",
        "speculate_max_candidate_len", "draft_model_name_or_path", "draft_model_quant_type",
        "return_full_hidden_states",
    ),
    "Medusa": ("medusa_choices",),
    "specmesh": ("typical_epsilon", "typical_delta", "draft_trees"),
}  # fmt: skip

# Row -> their value -> ours.
ALIASES: dict[str, dict[str, str]] = {
    "method": {alias: method.name for method in METHODS.values() for alias in method.aliases},
    "verify_strategy": {alias: strategy.name for strategy in STRATEGIES.values() for alias in strategy.aliases},
    "draft_dtype": {
        "wint8": "int8", "weight_only_int8": "int8", "wint4": "int8", "weight_only_int4": "int8", "a8w8_fp8": "auto",
        "": "auto", "None": "auto",
    },
}  # fmt: skip

# Types of a drafter's weights that are taken as another -> what is told at the start.
_TYPES_TOLD = dict.fromkeys(
    ("wint4", "weight_only_int4"), "int8 instead: only the model's own weights are made of 4 bits"
) | {"a8w8_fp8": "a folder in fp8 is read as its config.json says; a dense one stays dense"}

# FastDeploy's MTP with n-grams: `auto`, which asks the text drafters and the MTP block.
HYBRID_MTP, WITH_NGRAM = "hybrid_mtp_ngram", "with_ngram"

# Fixed methods that read text alone: other servers take a `model` beside them, and don't read it.
TEXT_METHODS = tuple(row.name for row in METHODS.values() if row.runs == "proposer" and not row.combines)

# Methods of other servers that are not served -> what is missing.
METHODS_TO_COME: dict[str, str] = {
    "mlp_speculator": "the network of MLP speculators",
    "hy3_mtp": "the model family Hunyuan 3",
    "longcat_flash_mtp": "the model family LongCat-Flash",
}

# Their keys that ask for something that isn't served -> what is missing, and the values that don't ask for it.
KEYS_TO_COME: dict[str, tuple[str, tuple[Any, ...]]] = {
    "draft_tensor_parallel_size": ("a drafter that is split over several devices", (1,)),
    "draft_sample_method": (
        "sampled drafts with every verify strategy; with rejection and block they are sampled", ("greedy",)
    ),
    "max_model_len": ("a context of the drafter's own: it has the model's", ()),
    "revision": ("a head's revision by name: give a folder that has it", ("main",)),
    "disable_by_batch_size": ("a batch size without drafts: method auto drafts as long as it pays", ()),
    "enable_adaptive_verification": ("fewer drafts at fixed methods: method auto drafts as long as it pays", (False,)),
    "enable_draft_logprob": ("log-probabilities of draft tokens", (False,)),
    "benchmark_mode": ("the benchmark mode", (False,)),
}

# Their keys for what needs no choice here: drafters use the model's pages and read its hidden values anyway.
WITHOUT_EFFECT = (
    "num_gpu_block_expand_ratio", "return_full_hidden_states", "enforce_eager", "attention_backend", "moe_backend",
    "disable_padded_drafter_batch", "use_local_argmax_reduction",
)  # fmt: skip

NO_CHOICE = "without effect: a drafter has the model's executor and KV pages"

# What they mean together with others, which is no row of its own.
COMBINED: dict[str, str] = {
    "mtp_strategy": "`default`: method decides; `with_ngram`: method auto, with the MTP block and text",
    "parallel_drafting": "`true` with the method eagle3 is the method block; with other methods refused",
}

# What differs from the server whose key it is.
_NOTES: dict[str, str] = {
    "model": "a folder or hub id; without effect with naive, ngram and suffix, as there",
    "num_speculative_tokens": "with method auto an upper bound",
    "suffix_decoding_max_tree_depth": "bounds the context alone; in vLLM context and draft together",
    "quantization": "leave it out for a quantised folder, a8w8_fp8 too; other values are refused",
    "draft_model_quant_type": "leave it out for a quantised folder, a8w8_fp8 too; other values are refused",
    "max_candidate_len": "for --verify-strategy topp",
    "verify_window": "for --verify-strategy topp",
}

# Flags of LMDeploy and PaddleNLP -> the key that means the same.
FLAGS: dict[str, str] = {
    "--speculative-algorithm": "method",
    "--speculative-draft-model": "model",
    "--speculative-num-draft-tokens": "num_speculative_tokens",
    "--speculate_method": "speculate_method",
    "--speculate_max_draft_token_num": "speculate_max_draft_token_num",
    "--speculate_max_ngram_size": "speculate_max_ngram_size",
    "--speculate_verify_window": "speculate_verify_window",
    "--speculate_max_candidate_len": "speculate_max_candidate_len",
    "--draft_model_name_or_path": "draft_model_name_or_path",
    "--draft_model_quant_type": "draft_model_quant_type",
    "--return_full_hidden_states": "return_full_hidden_states",
}


def translate(config: Mapping[str, Any]) -> tuple[dict[str, tuple[str, Any]], list[tuple[str, str]]]:
    """Row name -> (the key it came from, value), and what is wrong, by key."""
    rows: dict[str, tuple[str, Any]] = {}
    config, problems = _meant(config)
    for key, value in config.items():
        if _asks_for_nothing(key, value):
            continue
        if problem := _problem(key, value):
            problems.append((key, problem))
            continue
        row = KEYS[key]
        if isinstance(value, str):
            aliases = ALIASES.get(row, {})
            # SGLang writes its methods in capitals.
            value = aliases.get(value) or aliases.get(value.lower(), value)
        elif row == "draft_tree_shape" and isinstance(value, list):
            value = json.dumps(value)
        if row in rows and rows[row][1] != value:
            problems.append((key, f"{value!r} contradicts {rows[row][1]!r} of {rows[row][0]}"))
            continue
        rows.setdefault(row, (key, value))
    return rows, problems


def _meant(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """What keys mean together: MTP with n-grams is `auto`, and a drafter that reads text alone has no model."""
    problems = []
    config = dict(config)
    if config.pop("parallel_drafting", False):
        # vLLM's word for a draft in one pass, with the method that the head is made of.
        if (method := config.pop("method", "eagle3")) != "eagle3":
            problems.append(("parallel_drafting", f"is served with eagle3 heads, not with {method!r}"))
        config["method"] = "block"
    name = config.get("method", config.get("speculate_method"))
    strategy = config.pop("mtp_strategy", None)
    if strategy not in (None, "default", WITH_NGRAM):
        problems.append(("mtp_strategy", f"{strategy!r} is not one of default, {WITH_NGRAM}"))
    if strategy == WITH_NGRAM or name == HYBRID_MTP:
        config |= {"method": AUTO, "model": config.get("model") or OWN_FOLDER}
        config.pop("speculate_method", None)
    elif isinstance(name, str) and ALIASES["method"].get(name, name) in TEXT_METHODS:
        config = {key: value for key, value in config.items() if KEYS.get(key) != "draft_model"}
    return config, problems


def unread(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Keys that are taken and have no effect beside the others, or another one, and why."""
    kept, _ = _meant(config)
    name = config.get("method", config.get("speculate_method"))
    found = [
        (key, f"without effect: {name} uses no model")
        for key, value in config.items()
        if KEYS.get(key) == "draft_model" and key not in kept and value
    ]
    found += [(key, NO_CHOICE) for key in config if key in WITHOUT_EFFECT and _is_on(config[key])]
    found += [
        (key, _TYPES_TOLD[value.lower()])
        for key, value in config.items()
        if KEYS.get(key) == "draft_dtype" and isinstance(value, str) and value.lower() in _TYPES_TOLD
    ]
    method = METHODS.get(ALIASES["method"].get(name, name.lower())) if isinstance(name, str) else None
    if method is None or method.combines or kept.get("method", name) != name:
        return found
    for key in config:
        others = [row.name for row in METHODS.values() if KEYS.get(key) in row.settings and not row.has_network]
        if others and method.name not in others:
            found.append((key, f"{name} doesn't read it; requests that ask for {' or '.join(others)} do"))
    return found


def _is_on(value: Any) -> bool:
    """Flags come as text."""
    return str(value).lower() not in ("none", "false", "0", "")


def _asks_for_nothing(key: str, value: Any) -> bool:
    """Null, and what is written out as off. Flags come as text."""
    if key in WITHOUT_EFFECT or (value is None and (key in KEYS or key in KEYS_TO_COME)):
        return True
    nothing = KEYS_TO_COME.get(key, ("", ()))[1]
    return any(str(value).lower() == str(each).lower() for each in nothing)


def _problem(key: str, value: Any) -> str:
    if key in KEYS_TO_COME:
        return f"not served: {KEYS_TO_COME[key][0]}"
    if key not in KEYS:
        close = difflib.get_close_matches(key, [*KEYS, *KEYS_TO_COME, *WITHOUT_EFFECT], n=1, cutoff=0.6)
        return "no such key" + (f" (did you mean {close[0]}?)" if close else "")
    plain = value.lower() if isinstance(value, str) and value != "None" else value
    if KEYS[key] == "draft_dtype" and plain not in (*ALIASES["draft_dtype"], "int8"):
        return f"not served: making {value!r} of a drafter; int8 is, and a folder's own format is read"
    if KEYS[key] == "method" and isinstance(value, str) and (missing := METHODS_TO_COME.get(value.lower())):
        return f"{value!r} needs {missing}, which isn't served; served are {', '.join(METHODS)}"
    return ""


# For people -----------------------------------------------------------------------------------------------


def known_keys() -> tuple[str, ...]:
    return *KEYS, *KEYS_TO_COME, *WITHOUT_EFFECT, *COMBINED


def server_of(key: str) -> str:
    return next((server for server, keys in _OF.items() if key in keys), "vLLM, FastDeploy")


def here(key: str) -> str:
    """What a key is here, in words, as foreign_flags.here says it of a flag."""
    if key in COMBINED:
        return COMBINED[key]
    if key in WITHOUT_EFFECT:
        return f"taken; {NO_CHOICE}"
    if key in KEYS_TO_COME:
        missing, nothing = KEYS_TO_COME[key]
        values = " or ".join(f"`{str(value).lower()}`" for value in nothing)
        return (f"taken if it is {values}; otherwise refused: " if values else "refused: ") + f"not served: {missing}"
    row = KEYS[key]
    said = [f"`--{row.replace('_', '-')}`"]
    aliases = ALIASES.get(row, {})
    if values := ", ".join(f"`{theirs}` is `{ours}`" for theirs, ours in aliases.items() if theirs):
        said[0] += f": {values}"
    if row == "method":
        said.append(f"`{HYBRID_MTP}` is `{AUTO}` with the model's MTP block")
        said.append("refused: " + ", ".join(f"`{name}` ({missing})" for name, missing in METHODS_TO_COME.items()))
    if key in _NOTES:
        said.append(_NOTES[key])
    return "; ".join(said)
