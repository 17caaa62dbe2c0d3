"""Every command of docs/use/load.md runs, shortened, against the whole mesh with the mock engine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.running_mesh import RunningMesh, running_mesh
from loadtest.assertions import COMPARED, METRICS, NAMED, STATISTICS
from loadtest.cli import FAILED, OK, main
from loadtest.flags import parser, plan_of
from loadtest.objectives import PRESETS
from loadtest.workloads import NAMES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "use" / "load.md").read_text()
COMMANDS = re.findall(r"^\$ specmesh load ?(.*)$", PAGE, re.MULTILINE)
SHORT = ("--requests=4", "--duration=0", "--max-tokens=6", "--warmup=0", "--timeout=60")


@pytest.fixture(scope="module")
def mesh() -> Iterator[RunningMesh]:
    with running_mesh(engine="mock", mock_profile='{"step_ms": 1, "acceptance": 0.6, "vocab_size": 49152}') as mesh:
        yield mesh


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page calls files of one's own."""
    (tmp_path / "asks.jsonl").write_text('{"prompt": "One"}\n{"turns": ["Two", "Three"]}\n')
    lines = [{"prompt": f"At {at}", "timestamp": at} for at in (0.0, 0.1, 0.5)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("A short text.")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 20


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_as_it_stands(
    command: str, mesh: RunningMesh, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_of(parser().parse_args(shlex.split(command)))
    words = shlex.split(here(command, mesh))
    if not words or not words[0].startswith("http"):
        words.insert(0, mesh.url)
    code = main([*words, *SHORT])
    shown = capsys.readouterr()
    assert code == OK or (code == FAILED and "NOT SO" in shown.out and "sse_error" not in shown.out), shown
    for name in re.findall(r"--(?:json|csv|html|records) (\S+)", command):
        assert name == "-" or (folder / name).stat().st_size > 200


def here(command: str, mesh: RunningMesh) -> str:
    """At this mesh, and at ten times the rates, which are those of a real model."""
    port = mesh.metrics_url("worker").rpartition(":")[2].partition("/")[0]
    told = command.replace("http://127.0.0.1:8000", mesh.url).replace(":9103", f":{port}")
    # Its other name makes the same server another side.
    told = told.replace("http://127.0.0.1:8001", f"{mesh.url}/")
    return re.sub(r"--rate ([\d,]+)", lambda found: re.sub(r"(\d+)", r"\g<1>0", found[0]), told)


def test_what_can_be_named_stands_on_the_page() -> None:
    names = [*NAMES, *PRESETS, *METRICS, *STATISTICS, *NAMED, *COMPARED]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    flags = [option for action in parser()._actions for option in action.option_strings if option.startswith("--")]
    left = [flag for flag in flags if not re.search(rf"{flag}\b(?!-)", PAGE)]
    assert set(left) <= {"--help", "--model", "--ignore-eos", "--speculation", "--api-key", "--file-characters"}
