"""What is said where a method has nothing to draft with, or is given something else."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import reference

from models.config import read_network
from models.errors import ModelError
from models.heads.folder import read_head
from models.heads.shipped import shipped_heads
from models.heads.sources import OF_A_MODEL, check_kind, ensure_head
from models.heads.table import HEADS, TRAINED
from models.spec import Network
from services.cli.main import parser

HEAD = shipped_heads("smollm2-135m-instruct")["eagle3"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A target model without any head."""
    folder = tmp_path / "model"
    folder.mkdir()
    reference.write_target(folder, 3)
    return folder


@pytest.fixture
def target(model: Path) -> Network:
    return read_network(model)


@pytest.mark.parametrize("method", [name for name in HEADS if name != "mtp"])
@pytest.mark.parametrize("given", ["", "own"])
def test_without_a_folder_it_is_said_how_to_come_by_one(method: str, given: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refused:
        ensure_head(method, given, tmp_path, tmp_path)
    assert f"method {method} drafts with a" in refused.value.what
    assert refused.value.fix.startswith("write --method auto without --draft-model, ")
    assert (f"train-drafter --head {method} " in refused.value.fix) == (method in TRAINED)


def test_a_head_is_called_like_its_file() -> None:
    assert [row.name for row in HEADS.values()] == [*HEADS]


def test_what_is_said_to_be_trained_is_what_the_command_trains() -> None:
    (commands,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert commands.choices["train-drafter"]._option_string_actions["--head"].choices == TRAINED


@pytest.mark.parametrize("method", [name for name in HEADS if name not in ("eagle3", "draft_model")])
def test_a_head_of_another_method_is_named_with_its_own(method: str, target: Network) -> None:
    with pytest.raises(ModelError) as refused:
        read_head(method, HEAD, target)
    assert refused.value.what == f"{HEAD} holds a head of method eagle3"
    assert refused.value.fix.startswith("write --method eagle3 with this folder, ")


def test_a_head_is_no_draft_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds a head of method eagle3"):
        ensure_head("draft_model", str(HEAD), tmp_path, tmp_path)


@pytest.mark.parametrize("method", [name for name in HEADS if name != "draft_model"])
def test_a_model_without_a_head_is_named_so(method: str, model: Path, target: Network) -> None:
    """For mtp it is the target model's own folder, too."""
    with pytest.raises(ModelError, match=f"{model} is a model, and holds no head of method {method}"):
        read_head(method, model, target)


def test_a_model_with_an_mtp_block_is_a_draft_model_too(tmp_path: Path) -> None:
    names = {OF_A_MODEL, "model.layers.3.eh_proj.weight"}
    check_kind("draft_model", names, tmp_path)
    check_kind("mtp", names, tmp_path)
    with pytest.raises(ModelError, match="holds a head of method mtp"):
        check_kind("medusa", names, tmp_path)


def test_a_head_with_a_fault_keeps_the_fault(tmp_path: Path, target: Network) -> None:
    with pytest.raises(ModelError) as refused:
        read_head("eagle3", HEAD, target)
    assert "hidden" in refused.value.what
