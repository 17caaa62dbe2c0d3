"""A head that names its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import ModelError
from models.heads.verifier import verifier_of


def write(folder: Path, config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_head_names_the_model_that_it_was_made_for(tmp_path: Path) -> None:
    config = {"speculators_config": {"verifier": {"name_or_path": "owner/model"}, "algorithm": "eagle3"}}
    assert verifier_of(write(tmp_path, config), tmp_path) == "owner/model"


@pytest.mark.parametrize("config", [{}, {"architectures": ["LlamaForCausalLM"]}, {"speculators_config": None}])
def test_a_model_names_none(config: dict[str, Any], tmp_path: Path) -> None:
    assert verifier_of(write(tmp_path, config), tmp_path) == ""


def test_neither_does_a_name_or_a_folder_without_a_config(tmp_path: Path) -> None:
    assert verifier_of("smollm2-135m-instruct", tmp_path) == verifier_of(str(tmp_path), tmp_path) == ""


@pytest.mark.parametrize(
    "section", [{}, [], "x", {"verifier": {}}, {"verifier": "x"}, {"verifier": {"name_or_path": 5}}]
)
def test_a_head_that_names_no_model_is_refused_with_what_to_write(section: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="speculators_config names no verifier") as refused:
        verifier_of(write(tmp_path, {"speculators_config": section}), tmp_path)
    assert refused.value.fix == f"give --model MODEL and --draft-model {tmp_path}"


def test_of_a_hub_only_the_config_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[str] = []

    def fetch(name: str, *, filename: str, **_: object) -> str:
        asked.extend([name, filename])
        write(tmp_path, {"speculators_config": {"verifier": {"name_or_path": "owner/model"}}})
        return str(tmp_path / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    assert verifier_of("owner/head", tmp_path / "cache") == "owner/model"
    assert asked == ["owner/head", "config.json"]
