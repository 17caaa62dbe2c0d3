"""Which drafter runs in the worker, by the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.heads.shipped import shipped_heads
from services.api.own_drafter import OwnDrafter, own_drafter
from services.api.settings import Settings

EMBEDDED = "smollm2-135m-instruct"
HEADS = {method: str(folder) for method, folder in shipped_heads(EMBEDDED).items()}
SHIPPED = HEADS["eagle3"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, OwnDrafter("eagle3", SHIPPED)),
        ({"method": "eagle3"}, OwnDrafter("eagle3", SHIPPED)),
        ({"draft_model": "none"}, None),
        ({"method": "suffix"}, None),
        ({"method": "naive"}, None),
        ({"method": "eagle3", "draft_model": "none"}, OwnDrafter("eagle3", "")),
        ({"method": "medusa"}, OwnDrafter("medusa", HEADS["medusa"])),
        ({"method": "mtp"}, OwnDrafter("mtp", HEADS["mtp"])),
        ({"method": "mtp", "draft_model": "own"}, OwnDrafter("mtp", "own")),
        ({"method": "hydra"}, OwnDrafter("hydra", "")),
        ({"draft_model": "own"}, OwnDrafter("mtp", "own")),
        ({"draft_model": SHIPPED, "model": "other"}, OwnDrafter("eagle3", SHIPPED)),
        ({"draft_model": SHIPPED, "method": "suffix"}, OwnDrafter("eagle3", SHIPPED)),
        ({"model": "other"}, None),
    ],
)
def test_the_head_that_comes_with_specmesh_drafts_for_its_model_unless_told_otherwise(
    told: dict[str, Any], expected: OwnDrafter | None
) -> None:
    assert own_drafter(Settings.for_tests(**told)) == expected


def test_a_folder_called_like_the_model_is_another_model(tmp_path: Path) -> None:
    folder = tmp_path / EMBEDDED
    folder.mkdir()
    assert own_drafter(Settings.for_tests(model=str(folder))) is None
