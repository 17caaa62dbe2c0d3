"""Which drafter runs in the worker, by the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.heads.shipped import shipped_heads
from services.api.chosen_head import ChosenHead, chosen_head, with_verifier
from services.api.settings import Settings

EMBEDDED = "smollm2-135m-instruct"
HEADS = {method: str(folder) for method, folder in shipped_heads(EMBEDDED).items()}
SHIPPED = HEADS["eagle3"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, ChosenHead("eagle3", SHIPPED)),
        ({"method": "eagle3"}, ChosenHead("eagle3", SHIPPED)),
        ({"draft_model": "none"}, None),
        ({"method": "suffix"}, None),
        ({"method": "naive"}, None),
        ({"method": "eagle3", "draft_model": "none"}, ChosenHead("eagle3", "")),
        ({"method": "medusa"}, ChosenHead("medusa", HEADS["medusa"])),
        ({"method": "mtp"}, ChosenHead("mtp", HEADS["mtp"])),
        ({"method": "mtp", "draft_model": "own"}, ChosenHead("mtp", "own")),
        ({"method": "hydra"}, ChosenHead("hydra", "")),
        ({"draft_model": "own"}, ChosenHead("mtp", "own")),
        ({"draft_model": SHIPPED, "model": "other"}, ChosenHead("eagle3", SHIPPED)),
        ({"draft_model": SHIPPED, "method": "suffix"}, ChosenHead("eagle3", SHIPPED)),
        ({"model": "other"}, None),
    ],
)
def test_the_head_that_comes_with_specmesh_drafts_for_its_model_unless_told_otherwise(
    told: dict[str, Any], expected: ChosenHead | None
) -> None:
    assert chosen_head(Settings.for_tests(**told)) == expected


def test_a_folder_called_like_the_model_is_another_model(tmp_path: Path) -> None:
    folder = tmp_path / EMBEDDED
    folder.mkdir()
    assert chosen_head(Settings.for_tests(model=str(folder))) is None


def test_a_head_in_place_of_the_model_starts_the_model_that_it_names(tmp_path: Path) -> None:
    """As Speculators' folders do."""
    (tmp_path / "config.json").write_text('{"speculators_config": {"verifier": {"name_or_path": "owner/model"}}}')
    found = with_verifier(Settings.for_tests(model=str(tmp_path)))
    assert (found.model, found.draft_model) == ("owner/model", str(tmp_path))
    found = with_verifier(Settings.for_tests(model=str(tmp_path), draft_model="none"))
    assert (found.model, found.draft_model) == ("owner/model", "none")
    plain = Settings.for_tests()
    assert with_verifier(plain) is plain
