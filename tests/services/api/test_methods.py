"""The table of methods is the truth: classes, settings and choices agree with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from models.heads.table import HEADS
from services.api.methods import AUTO, HYBRID_FIRST, HYBRID_THEN, METHODS, NAIVE, PARTS, SOURCES, Method
from services.api.settings import ROWS
from services.api.speculative_config import METHODS_TO_COME

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_row_names_a_class_in_the_room_where_it_runs_and_a_file_of_the_methods_own(method: Method) -> None:
    """Heads have theirs in models/heads, and share what drafts with them."""
    found = method.load()
    assert found.__module__.startswith(f"services.{method.runs}.")
    assert method.has_network or found.__module__.rpartition(".")[2] == method.name


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_rows_settings_exist_and_its_help_is_one_phrase(method: Method) -> None:
    assert set(method.settings) <= set(ROWS)
    assert method.help and "\n" not in method.help and not method.help.endswith(".")


def test_the_registry_of_the_proposer_has_the_rows_that_run_there() -> None:
    from services.api.settings import load_settings
    from services.proposer.index import SuffixIndex
    from services.proposer.registry import make_drafters

    settings = load_settings({"store_dir": "none"}, {})
    index = SuffixIndex.open(settings)
    made = make_drafters(settings, index)
    index.close()
    assert {name: type(drafter) for name, drafter in made.items()} == {
        name: method.load() for name, method in METHODS.items() if method.runs == "proposer"
    }


def test_choices_of_settings_are_the_rows() -> None:
    assert ROWS["method"].choices == tuple(METHODS) and ROWS["method"].default == AUTO
    assert ROWS["hybrid_first"].choices == ROWS["hybrid_then"].choices == PARTS
    assert {HYBRID_FIRST, HYBRID_THEN} <= set(PARTS) and NAIVE not in PARTS
    assert not set(METHODS) & set(METHODS_TO_COME)


def test_every_method_of_one_source_can_be_the_source_of_a_draft() -> None:
    assert set(PARTS) <= set(SOURCES)
    assert {each.name for each in SOURCES.values() if each.head} == set(HEADS)
    assert set(HEADS) == {name for name, method in METHODS.items() if method.has_network}


def test_outside_its_own_room_a_method_is_named_in_the_table_only() -> None:
    rooms = [room for room in (ROOT / "services").iterdir() if room.name != "proposer"]
    files = [file for room in rooms for file in room.rglob("*.*") if file.suffix in (".py", ".html", ".js")]
    texts = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
    naming = {name for name, text in texts.items() if re.search(r"['\"]ngram['\"]", text)}
    assert naming == {"services/api/methods.py"}
