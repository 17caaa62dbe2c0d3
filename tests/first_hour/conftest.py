"""The first hour of somebody who comes from another server, played against the real command and a real mesh.

Each try ends in one of these, and a table at the end counts them:

    worked                what was typed did what it says
    said what to do       it was refused, and what the refusal tells to type was then typed and worked
    failed                neither
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "flow"))

from player import Ended
from running_mesh import MOCK, mesh_fixture

OUTCOMES = ("worked", "said what to do", "failed", "skipped")


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without settings of their own."""
    monkeypatch.setenv("SPECMESH_CONFIG", "")


@pytest.fixture
def ended(record_property: Callable[[str, object], None]) -> Ended:
    """How a try ended; without a word it has failed."""
    return lambda outcome: record_property("first hour", outcome)


mock_mesh = mesh_fixture("package", engine="mock", mock_profile=MOCK)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """By the reports, so that several processes of tests make one table."""
    counts: dict[str, Counter[str]] = {}
    for state in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(state, []):
            path = Path(report.nodeid.partition("::")[0])
            if path.parent.name == "first_hour":
                # A file that can't be collected has none.
                said = dict(getattr(report, "user_properties", ())).get("first hour", "failed")
                outcome = said if state == "passed" else "skipped" if state == "skipped" else "failed"
                room = path.stem.removeprefix("test_").replace("_", " ")
                counts.setdefault(room, Counter())[outcome] += 1
    if not counts:
        return
    terminalreporter.section("the first hour")
    terminalreporter.write_line(f"{'':<28}{'tried':>8}" + "".join(f"{outcome:>18}" for outcome in OUTCOMES))
    for room, found in sorted(counts.items()):
        cells = "".join(f"{found[outcome]:>18}" for outcome in OUTCOMES)
        terminalreporter.write_line(f"{room:<28}{found.total():>8}{cells}")
