"""ERNIE 4.5 with experts against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity
import pytest
import routing
from transformers import Ernie4_5_MoeConfig

from models.config import read_network
from models.sources import ModelError
from models.spec import Experts

SIZES: dict[str, Any] = {
    "moe_num_experts": 8,
    "moe_k": 3,
    "moe_intermediate_size": 24,
    "moe_num_shared_experts": 1,
}
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (0, {}),
    "no shared expert, one expert a row": (0, {"moe_num_shared_experts": 0, "moe_k": 1}),
    "two shared experts, tied": (0, {"moe_num_shared_experts": 2, "tie_word_embeddings": True}),
    "dense layers around sparse": (
        0,
        {"num_hidden_layers": 5, "moe_layer_start_index": 1, "moe_layer_end_index": 3, "moe_layer_interval": 2},
    ),
    "all layers sparse, a high floor": (0, {"moe_layer_start_index": 0, "moe_norm_min": 0.6}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_text_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    seed, changes = VARIANTS[variant]
    routing.check(routing.save_sparse(Ernie4_5_MoeConfig, tmp_path, seed, **(SIZES | changes)), tmp_path)


@parity.every_executor
def test_bfloat16_stays_close(make: parity.MakeExecutor, tmp_path: Path) -> None:
    # All experts: rounding must not send a row elsewhere.
    parity.check_bfloat16(
        routing.save_sparse(Ernie4_5_MoeConfig, tmp_path, 0, **(SIZES | {"moe_k": 8})), tmp_path, make
    )


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ernie4_5_moe")
    routing.save_sparse(Ernie4_5_MoeConfig, folder, 0, **SIZES)
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return values


@pytest.mark.parametrize(
    ("first", "last", "interval", "sparse"),
    [(0, -1, 1, [0, 1, 2, 3, 4, 5]), (1, -1, 2, [1, 3, 5]), (2, 4, 1, [2, 3, 4]), (3, 9, 3, [5]), (6, -1, 1, [])],
)
def test_experts_stand_from_the_first_to_the_last_layer_every_so_many(
    fields: dict[str, Any], tmp_path: Path, first: int, last: int, interval: int, sparse: list[int]
) -> None:
    where = {"moe_layer_start_index": first, "moe_layer_end_index": last, "moe_layer_interval": interval}
    (tmp_path / "config.json").write_text(json.dumps(fields | where | {"num_hidden_layers": 6}))
    layers = read_network(tmp_path).layers
    assert [index for index, layer in enumerate(layers) if isinstance(layer.mlp, Experts)] == sparse


@pytest.mark.parametrize(
    "changes",
    [
        {"use_bias": True},
        {"moe_use_aux_free": False},
        {"moe_k": 9},
        {"moe_num_experts": [8, 8]},
        {"moe_layer_end_index": -2},
        {"moe_layer_interval": 0},
        {"compression_ratio": 2.0},
    ],
)
def test_a_field_that_is_not_computed_is_named(fields: dict[str, Any], tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields | changes))
    with pytest.raises(ModelError, match=next(iter(changes))):
        read_network(tmp_path)
