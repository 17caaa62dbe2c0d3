"""A draft model through the whole mesh: the model drafts for itself, so every draft token is accepted, and the text is
that of plain decoding. And a block drafter, whose random drafts are rejected."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from running_mesh import RunningMesh
from tiny_folder import write_tiny_model

from bench.oracles.draft_folders import random_dflash
from models.config import read_network
from models.weights import Weights
from services.training.nets import net_of


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")
    settings = {
        "model": folder, "executor": "compiled", "dtype": "float32", "max_step_tokens": 16,
        "draft_model": str(folder),
    }  # fmt: skip
    running = RunningMesh(tmp_path_factory.mktemp("mesh"), settings)
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


def write_block(folder: Path, out: Path) -> None:
    network, weights = read_network(folder), Weights(folder)
    table = weights.take(network.embedding, network.vocab_size, network.hidden_size).float()
    model = SimpleNamespace(network=network, embedding=table, head=table)
    net_of("block", model, torch.arange(100)).save(out)


def write_dflash(folder: Path, out: Path) -> None:
    """With the name of its model, as Speculators write it."""
    config = json.loads((random_dflash(folder, out, seed=1) / "config.json").read_text())
    section = {"speculators_config": {"verifier": {"name_or_path": str(folder)}}}
    (out / "config.json").write_text(json.dumps(config | section))


@pytest.mark.parametrize(
    ("method", "write"), [("block", write_block), pytest.param("dflash", write_dflash, marks=pytest.mark.slow)]
)
def test_a_block_drafter_changes_no_text(method: str, write: Callable[[Path, Path], None], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    write(folder, tmp_path / "head")
    settings = {"model": folder, "executor": "compiled", "dtype": "float32", "draft_model": str(tmp_path / "head")}
    if method == "dflash":
        # One argument starts both.
        settings["model"] = settings.pop("draft_model")
    (tmp_path / "mesh").mkdir()
    running = RunningMesh(tmp_path / "mesh", settings)
    try:
        running.wait_until_ready()
        plain = complete(running, temperature=0, speculation={"method": "naive"})
        assert complete(running, temperature=0, speculation={"method": method}) == plain
        assert complete(running, temperature=0, speculation={"method": "auto"}) == plain
        drafted = running.by_label("worker", "specmesh:draft_source_tokens_total", "source").get(method, 0.0)
        # At least 12 steps of five draft tokens, even if all of them were accepted.
        assert drafted >= 50
    finally:
        running.stop()


def complete(mesh: RunningMesh, **more: Any) -> str:
    prompt = " ".join(f"w{k}" for k in range(5, 45))
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 60, "ignore_eos": True, **more}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{mesh.url}/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


GREEDY, SAMPLED = {"temperature": 0}, {"temperature": 1, "seed": 7}


def drafted(mesh: RunningMesh) -> float:
    """Tokens of the draft model that were verified."""
    return mesh.by_label("worker", "specmesh:draft_source_tokens_total", "source").get("draft_model", 0.0)


@pytest.mark.parametrize(
    ("trees", "sampling"), [(False, SAMPLED), (True, GREEDY)], ids=["chains, sampled", "trees, greedy"]
)
def test_auto_changes_no_text(mesh: RunningMesh, trees: bool, sampling: dict[str, Any]) -> None:
    """How much it drafts is its affair: a draft model as large as the model costs more than it brings."""
    plain = complete(mesh, speculation={"method": "naive"}, **sampling)
    assert complete(mesh, speculation={"method": "auto", "trees": trees}, **sampling) == plain


@pytest.mark.parametrize(
    ("trees", "sampling"), [(False, GREEDY), (True, SAMPLED)], ids=["chains, greedy", "trees, sampled"]
)
def test_its_drafts_are_verified_and_change_no_text(mesh: RunningMesh, trees: bool, sampling: dict[str, Any]) -> None:
    plain = complete(mesh, speculation={"method": "naive"}, **sampling)
    before = drafted(mesh)
    assert complete(mesh, speculation={"method": "draft_model", "trees": trees}, **sampling) == plain
    assert drafted(mesh) > before + 30


def test_a_greedy_draft_of_the_model_itself_is_never_wrong(mesh: RunningMesh) -> None:
    def accepted() -> tuple[float, float]:
        names = ("specmesh:draft_source_tokens_total", "specmesh:draft_source_accepted_tokens_total")
        drafted, kept = (mesh.by_label("worker", name, "source").get("draft_model", 0.0) for name in names)
        return drafted, kept

    before = accepted()
    complete(mesh, temperature=0, speculation={"method": "draft_model", "num_speculative_tokens": 4})
    drafted, kept = (now - then for now, then in zip(accepted(), before, strict=True))
    assert drafted == kept > 40
