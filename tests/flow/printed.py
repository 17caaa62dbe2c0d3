"""Commands that a page of docs prints, and that a test says it runs."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.running_mesh import ROOT

sys.path.append(str(ROOT / "tests" / "docs"))

from fences import blocks_of


def printed_blocks(page: str, test: Path) -> list[list[str]]:
    """The commands of each block of the page that is marked `run by` this test."""
    by = test.relative_to(ROOT)
    found = [each.commands for each in blocks_of(page, (ROOT / page).read_text()) if each.mark.endswith(f"run by {by}")]
    assert found and all(found), f"{page} has no commands that {by} runs"
    return found
