"""What `specmesh batch` hands on to a mesh of its own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from services.api.settings import Settings
from services.cli import batch
from services.cli.flags import read_settings, spelled_out
from services.cli.main import parser
from services.cli.server_used import own_settings
from specmesh.own_mesh import flags_of

FILES = "batch in.jsonl out.jsonl "


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECMESH_CONFIG", "")
    monkeypatch.setenv("SPECMESH_RUN_DIR", "/of/another/mesh")
    monkeypatch.setenv("SPECMESH_DTYPE", "float32")


def settings_of(words: str) -> Settings:
    return read_settings(parser().parse_args(spelled_out(shlex.split(words))))


@pytest.mark.parametrize(
    ("typed", "handed_on"),
    [
        ("", {}),
        ("--dtype auto", {"dtype": "auto"}),
        ("--model M --no-prefix-cache", {"model": "M", "prefix_cache": False}),
        ("--max-num-seqs 8 --mock-profile '{\"step_ms\": 2}'", {"max_sequences": 8, "mock_profile": {"step_ms": 2}}),
    ],
)
def test_settings_that_were_typed_are_handed_on(typed: str, handed_on: dict[str, Any]) -> None:
    """What environment and settings file say, the mesh reads itself."""
    given = own_settings(settings_of(FILES + typed))
    assert given == handed_on
    words = [flag for name, value in given.items() for flag in flags_of(name, value)]
    again = settings_of(" ".join(["up", *map(shlex.quote, words)]))
    assert {name: value for name, value in again if name in handed_on} == handed_on, "as `up` reads them"


def test_vllms_spelling_is_the_same_command() -> None:
    theirs = parser().parse_args(["run-batch", "-i", "in.jsonl", "-o", "out.jsonl", "--concurrency", "8"])
    ours = parser().parse_args(["batch", "in.jsonl", "--concurrency=8", "out.jsonl"])
    assert {**vars(theirs), "parser": None} == {**vars(ours), "parser": None}


def test_a_file_does_not_become_that_of_its_own_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("a line\n")
    options = parser().parse_args(["batch", str(file), str(file), "--url=http://127.0.0.1:1"])
    assert batch.main(options, read_settings(options)) == 2
    assert "IN and OUT are the same file" in capsys.readouterr().err and file.read_text() == "a line\n"
