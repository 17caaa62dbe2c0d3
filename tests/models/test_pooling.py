"""How a folder says that hidden states become an embedding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.pooling import read_pooling
from models.sources import ModelError


def write(folder: Path, **told: object) -> Path:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **told}))
    return folder


@pytest.mark.parametrize(
    ("mode", "named"), [("lasttoken", "last"), ("mean_tokens", "mean"), ("cls_token", "cls_token")]
)
def test_the_mode_that_is_on_is_named(tmp_path: Path, mode: str, named: str) -> None:
    modes = {f"pooling_mode_{each}": each == mode for each in ("cls_token", "mean_tokens", "lasttoken", "max_tokens")}
    assert read_pooling(write(tmp_path, **modes)) == named


def test_a_folder_may_say_nothing_or_several(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == ""
    told = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    assert read_pooling(write(tmp_path, **told)) == "mean+max_tokens"


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="1_Pooling"):
        read_pooling(tmp_path)
