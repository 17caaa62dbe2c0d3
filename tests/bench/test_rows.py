from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench import rows


def test_a_row_carries_what_its_figures_were_measured_on(tmp_path: Path) -> None:
    rows.append("mesh", ["mesh", "--streams", "10"], {"p50": 1.5}, folder=tmp_path)
    rows.append("mesh", ["mesh"], {"p50": 1.6}, folder=tmp_path)
    first, second = (json.loads(line) for line in (tmp_path / "mesh.jsonl").read_text().splitlines())
    assert first["figures"] == {"p50": 1.5} and second["figures"] == {"p50": 1.6}
    assert first["command"] == "python -m bench mesh --streams 10"
    assert first["hardware"]["cores"] >= 1 and first["hardware"]["memory_gb"] > 0
    assert first["versions"]["pyzmq"] and first["commit"] and isinstance(first["dirty"], bool)


def test_a_row_has_no_folders_of_its_machine(tmp_path: Path) -> None:
    words = ["witnesses", "--guidellm", "/home/someone/tools/guide", "--url", "http://127.0.0.1:8000", "--rounds=2"]
    row = rows.append("witnesses", words, {}, folder=tmp_path)
    assert row["command"] == "python -m bench witnesses --guidellm guide --url http://127.0.0.1:8000 --rounds=2"


def test_figures_and_pages_made_of_them_do_not_make_a_commit_dirty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Or the second part of a suite would not be of the commit that the first was of."""
    for words in (["init", "-q"], ["config", "user.email", "a@b"], ["config", "user.name", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    for name in ("code.py", "bench/results/bus.jsonl", "docs/results.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one\n")
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    subprocess.run(["git", "commit", "-qm", "all"], cwd=tmp_path, check=True)
    monkeypatch.setattr(rows, "ROOT", tmp_path)

    def dirty() -> bool:
        found: bool = rows.append("mesh", ["mesh"], {}, folder=tmp_path / "elsewhere")["dirty"]
        return found

    (tmp_path / "bench" / "results" / "mesh.jsonl").write_text("two\n")
    (tmp_path / "docs" / "results.md").write_text("two\n")
    assert not dirty()
    (tmp_path / "code.py").write_text("two\n")
    assert dirty()


def test_a_row_says_how_busy_others_kept_the_machine_before_it_began(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times = iter([(100, 200), (150, 300)])  # of 100 ticks 50 were idle
    monkeypatch.setattr(rows, "_cpu_times", lambda: next(times))
    monkeypatch.setattr(rows, "_busy_before", None)
    assert rows.append("mesh", ["mesh"], {}, folder=tmp_path)["hardware"]["busy_before"] is None
    rows.look_around(seconds=0.0)
    assert rows.append("mesh", ["mesh"], {}, folder=tmp_path)["hardware"]["busy_before"] == 0.5
