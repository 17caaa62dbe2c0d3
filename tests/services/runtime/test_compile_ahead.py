"""What a first start compiles while it waits for something else."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from services.api.settings import Settings
from services.runtime import compile_ahead
from specmesh import rooms


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(compile_ahead, "COMPILED", tmp_path / "compiled")
    return tmp_path


def test_it_is_wanted_until_something_was_compiled(somewhere_else: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_ahead.wanted()
    (somewhere_else / "compiled").mkdir()
    assert compile_ahead.wanted()
    (somewhere_else / "compiled" / "kernels.linear.cpu-1").mkdir()
    assert not compile_ahead.wanted()
    (somewhere_else / "compiled" / "kernels.linear.cpu-1").rmdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/elsewhere")
    assert not compile_ahead.wanted(), "whoever keeps code elsewhere has compiled it there"


def test_what_it_starts_runs_to_its_end_or_is_stopped(somewhere_else: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = f"import pathlib; pathlib.Path({str(somewhere_else / 'note')!r}).touch()"
    # A module's name is the code it runs.
    monkeypatch.setattr(rooms, "command", lambda module: (sys.executable, "-c", module))
    monkeypatch.setattr(compile_ahead, "MODULES", (note, "raise SystemExit(3)"))
    processes = compile_ahead.start()
    compile_ahead.wait(processes)
    assert (somewhere_else / "note").exists() and [process.returncode for process in processes] == [0, 3]
    monkeypatch.setattr(compile_ahead, "MODULES", ("import time; time.sleep(1000)",))
    processes = compile_ahead.start()
    compile_ahead.stop(processes)
    assert [process.returncode for process in processes] == [-9]


@pytest.mark.parametrize(
    ("changes", "modules"),
    [
        ({"executor": "compiled"}, compile_ahead.MODULES),
        ({"executor": "plain"}, (compile_ahead.OF_PROPOSER,)),
        ({"executor": "triton"}, (compile_ahead.OF_PROPOSER,)),
        ({"engine": "mock"}, (compile_ahead.OF_PROPOSER,)),
    ],
)
def test_loops_of_the_model_are_only_compiled_where_they_run(changes: dict[str, str], modules: tuple[str, ...]) -> None:
    assert compile_ahead.modules(Settings.for_tests(**changes)) == modules


def test_it_names_modules_that_are_there() -> None:
    """What they compile is tested by those modules' own tests."""
    assert compile_ahead.MODULES and all(map(find_spec, compile_ahead.MODULES))
