"""--speculative-config as the pages of other servers write it: taken, or refused with what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from player import MODEL, Ended, Start, asked, fix_of, typed
from running_mesh import MOCK

from bench.running_mesh import free_ports

pytestmark = pytest.mark.slow

# What is refused: the words that say what is missing, and the JSON that is left when it is taken out.
CONFIGS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "vLLM, n-gram": (
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}, "", {},
    ),
    "vLLM, suffix": (
        {"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_tree_depth": 24}, "", {},
    ),
    "vLLM, EAGLE-3": (
        {"method": "eagle3", "model": "./eagle3", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}, "", {},
    ),
    "vLLM, EAGLE-3 over two devices": (
        {"method": "eagle3", "model": "./eagle3", "draft_tensor_parallel_size": 2},
        "draft_tensor_parallel_size", {"method": "eagle3", "model": "./eagle3"},
    ),
    "vLLM, draft model": (
        {"method": "draft_model", "model": "./small", "num_speculative_tokens": 5, "parallel_drafting": False}, "", {},
    ),
    "vLLM, MTP of DeepSeek": ({"method": "deepseek_mtp", "num_speculative_tokens": 1}, "", {}),
    "vLLM, MLP speculator": (
        {"method": "mlp_speculator", "model": "./mlp"}, "mlp_speculator", {"method": "auto"},
    ),
    "FastDeploy, MTP with n-grams": (
        {"method": "mtp", "num_speculative_tokens": 5, "num_model_steps": 2, "mtp_strategy": "with_ngram"}, "", {},
    ),
    "FastDeploy, MTP in a folder, verified greedily": (
        {"method": "mtp", "verify_strategy": "greedy", "num_speculative_tokens": 1, "model": "./mtp"}, "", {},
    ),
    "FastDeploy, all drafts accepted": (
        {"method": "mtp", "accept_policy": "accept_all", "num_speculative_tokens": 1}, "", {},
    ),
    "FastDeploy, suffixes as its page has them": (
        {"method": "mtp", "num_speculative_tokens": 4, "suffix_decoding_max_tree_depth": 64,
         "suffix_decoding_max_cached_requests": 10000, "suffix_decoding_max_spec_factor": 1.0,
         "suffix_decoding_min_token_prob": 0.1}, "", {},
    ),
    "FastDeploy, no drafts": ({"method": "naive", "num_speculative_tokens": 1}, "", {}),
    "FastDeploy, n-gram": ({"method": "ngram", "num_speculative_tokens": 5, "max_ngram_size": 5}, "", {}),
    "FastDeploy, topp": (
        {"method": "ngram", "verify_strategy": "topp", "max_candidate_len": 5, "verify_window": 2}, "", {},
    ),
    "vLLM, Qwen3-Next": ({"method": "qwen3_next_mtp"}, "", {}),
    "LMDeploy, MTP": ({"method": "deepseek_mtp", "num_speculative_tokens": 3}, "", {}),
    "LMDeploy, EAGLE-3": (
        {"method": "eagle3", "model": "./eagle3", "num_speculative_tokens": 3}, "", {},
    ),
    "PaddleNLP, reference": (
        {"method": "inference_with_reference", "num_speculative_tokens": 5, "max_ngram_size": 2}, "", {},
    ),
    "a key nobody has": ({"method": "ngram", "num_spec_tokens": 5}, "num_spec_tokens", {"method": "ngram"}),
}  # fmt: skip
STARTED = [name for name, (config, refused, _) in CONFIGS.items() if not refused and config["method"] in
           ("ngram", "suffix", "inference_with_reference")]  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_json_is_taken_or_what_is_missing_is_named(name: str, ended: Ended) -> None:
    config, refused, left = CONFIGS[name]
    said = typed("config", "show", "--changed", "--speculative-config", json.dumps(config))
    assert (said.code != 0) == bool(refused), said.text
    if not refused:
        assert "method" in said.text
        ended("worked")
        return
    assert refused in said.text and "flag --speculative-config, " in said.text
    again = typed("config", "show", "--changed", "--speculative-config", json.dumps(left))
    assert again.code == 0, again.text
    ended("said what to do")


@pytest.mark.parametrize("name", STARTED)
def test_a_json_of_drafts_from_text_starts_a_server_that_drafts(name: str, tmp_path: Path, ended: Ended) -> None:
    ports = free_ports(8)
    words = ["serve", MODEL, "--speculative-config", json.dumps(CONFIGS[name][0]), "--engine", "mock"]
    own = ["--mock-profile", MOCK, "--run-dir", str(tmp_path), "--store-dir", "none"]
    start = Start(tmp_path, *words, *own, f"--port={ports}", f"--metrics-port={ports + 1}")
    try:
        assert start.ready(), start.text
        body = {"model": MODEL, "prompt": "1 2 3 4 1 2 3 4 1 2", "max_tokens": 60, "temperature": 0}
        status, text = asked(start.url(), "POST", "/v1/completions", body)
        assert status == 200, text
        assert "speculative_decoding" in json.loads(text)["metrics"]
    finally:
        start.stop()
    ended("worked")


def test_a_head_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path, ended: Ended) -> None:
    config = json.dumps({"method": "eagle3", "model": "./eagle3"})
    said = typed("serve", MODEL, "--speculative-config", config, "--port=0", f"--metrics-port={free_ports(4)}",
                 "--run-dir", str(tmp_path))  # fmt: skip
    assert said.code != 0 and "./eagle3 holds no head" in said.text
    assert "--method auto" in fix_of(said.text)
    ended("said what to do")
