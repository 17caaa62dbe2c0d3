"""Qwen3-MoE against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
import routing
from transformers import Qwen3MoeConfig

from models.config import read_network
from models.sources import ModelError
from models.spec import Experts, Mlp

SIZES: dict[str, Any] = {
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (0, {}),
    "weights that don't sum to one": (0, {"norm_topk_prob": False}),
    "dense layers among sparse": (0, {"mlp_only_layers": [0], "num_hidden_layers": 4, "decoder_sparse_step": 2}),
    "one expert a row, a window": (0, {"num_experts_per_tok": 1, "use_sliding_window": True, "sliding_window": 20}),
    "all experts, biases, tied": (0, {"num_experts_per_tok": 8, "attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    seed, changes = VARIANTS[variant]
    routing.check(routing.save_sparse(Qwen3MoeConfig, tmp_path, seed, **(SIZES | changes)), tmp_path)


@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    # All experts: rounding must not send a row elsewhere.
    theirs = routing.save_sparse(Qwen3MoeConfig, tmp_path, 0, **(SIZES | {"num_experts_per_tok": 8}))
    parity.check_bfloat16(theirs, tmp_path, make)


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_moe")
    routing.save_sparse(Qwen3MoeConfig, folder, 0, **SIZES)
    return folder


def test_the_number_of_experts_has_two_names(saved: Path, tmp_path: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    count = config.pop("num_local_experts", None) or config.pop("num_experts")
    for name in ("num_experts", "num_local_experts"):
        (tmp_path / "config.json").write_text(json.dumps(config | {name: count}))
        assert all(len(layer.mlp.experts) == 8 for layer in read_network(tmp_path).layers)


def test_layers_are_dense_where_the_config_says_so(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    edit(tmp_path, num_hidden_layers=6, mlp_only_layers=[3], decoder_sparse_step=2)
    kinds = [type(layer.mlp) for layer in read_network(tmp_path).layers]
    assert kinds == [Mlp, Experts, Mlp, Mlp, Mlp, Experts]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"mlp_only_layers": "0"}, "mlp_only_layers"),
        ({"mlp_only_layers": [True]}, "mlp_only_layers"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
    ],
)
def test_a_field_that_is_not_computed_is_named(saved: Path, tmp_path: Path, changes: Any, said: str) -> None:
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    edit(tmp_path, **changes)
    with pytest.raises(ModelError, match=said):
        read_network(tmp_path)
