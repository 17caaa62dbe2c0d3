"""Experts and latent attention in the compiled executor: strict in every dtype, and int8 near float32.

What they compute is compared with transformers in each family's own file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
import routing
import torch
from transformers import DeepseekV3Config, Ernie4_5_MoeConfig, Qwen3MoeConfig

from models.batch import Stretch
from models.config import read_network
from models.cpu.executor import CpuExecutor

FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "deepseek_v3": (
        DeepseekV3Config,
        {
            "num_key_value_heads": 4, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
            "moe_intermediate_size": 24, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 24,
            "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24,
        },
    ),
    "qwen3_moe": (
        Qwen3MoeConfig, {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
    ),
    "ernie4_5_moe": (Ernie4_5_MoeConfig, {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 24}),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, (config, changes) in FAMILIES.items():
        found[name] = tmp_path_factory.mktemp(name)
        routing.save_sparse(config, found[name], 0, **changes)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_has_the_same_bits_in_any_cut_and_beside_any_others(
    family: str, dtype: str, folders: dict[str, Path]
) -> None:
    executor, pages = parity.load(folders[family], CpuExecutor, dtype, threads=2), parity.Pages()
    assert executor.strict
    tokens, others = parity.random_tokens(120, 1), parity.random_tokens(40, 2)
    whole = parity.run(executor, [Stretch(tokens, 0, pages.take(120), 0)])
    table, beside = pages.take(120), pages.take(40)
    parts, start = [], 0
    for rows in (1, 1, 30, 7, 1, 64, 16):
        text = Stretch(tokens[start : start + rows], start, table, 0)
        # Another sequence begins anew beside every part, before it and behind it by turns.
        around = Stretch(others[: rows % 23 + 1], 0, beside, rows % 23 + 1)
        both = [around, text] if start % 2 else [text, around]
        parts.append(parity.run(executor, both))
        start += rows
    assert start == 120 and torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("deepseek_v3", {"kv_lora_rank": 1024}, "head_dim 1032"),
        ("deepseek_v3", {"v_head_dim": 23}, "even"),
        ("qwen3_moe", {"num_experts": 1025}, "1024 experts"),
        ("qwen3_moe", {"hidden_size": 66}, "multiple of 4"),
    ],
)
def test_what_the_loops_lack_is_said(
    family: str, changes: dict[str, Any], said: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    config = json.loads((folders[family] / "config.json").read_text())
    config.pop("num_local_experts", None)
    (tmp_path / "config.json").write_text(json.dumps({"num_experts": 8} | config | changes))
    assert said in CpuExecutor.why_not(read_network(tmp_path), "bfloat16")


@pytest.mark.parametrize(
    ("family", "all_experts"),
    [("deepseek_v3", {"num_experts_per_tok": 16, "topk_group": 4}), ("qwen3_moe", {"num_experts_per_tok": 8})],
)
def test_int8_stays_near_float32(family: str, all_experts: dict[str, Any], tmp_path: Path) -> None:
    """Every row goes to all experts, so that what is left is rounding to 8 bits."""
    config, changes = FAMILIES[family]
    theirs = routing.save_sparse(config, tmp_path, 0, **(changes | all_experts))
    executor, tokens = parity.load(tmp_path, CpuExecutor, "int8"), parity.random_tokens(60, 3)
    expected = parity.logits_of(theirs, tokens)
    logits = parity.run(executor, [Stretch(tokens, 0, parity.Pages().take(60), 0)])
    assert (logits - expected).abs().mean() <= 0.08 * expected.abs().mean()
