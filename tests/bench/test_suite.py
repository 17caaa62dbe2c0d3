"""The suite: what ends badly ends alone, and leaves what it found. Parts are stood in for by processes that end as they
are told. The dry run runs all stages of a GPU in Triton's interpreter, in processes without what carries messages."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from bench import __main__ as command
from bench import rows, suite
from bench.shown import lines_of
from bench.suite import FORMS, FULL, ON_GPU, OVERRAN, SHORT, LeftOut, SuitePart

ROOT = Path(__file__).resolve().parents[2]
# A machine with a GPU may have torch, triton and numba, and nothing of what carries messages.
MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"zmq", "msgspec", "msgpack", "orjson", "aiohttp", "uvloop", "prometheus_client"}:
            raise ModuleNotFoundError(f"no module named {name}", name=name)

sys.meta_path.insert(0, Missing())
"""
CODES = {
    "gpu_environment": "print('all is well')",
    "parity": "import os, signal; print('before'); os.kill(os.getpid(), signal.SIGSEGV)",
    "gpu_law3": "import time; print('begun', flush=True); time.sleep(600)",
    "gpu_steps": "raise SystemExit(1)",
    "gpu_verify": f"raise SystemExit({suite.LEFT_OUT})",
    "gpu_decode": "raise ValueError('broken')",
}


def as_told(command: Sequence[str], said: IO[bytes] | None) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-u", "-c", CODES[command[0]]]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)


def options(*flags: str) -> argparse.Namespace:
    return suite.parser(ON_GPU).parse_args(flags)


@pytest.mark.parametrize(("form", "part"), [(form, part) for form, parts in FORMS.items() for part in parts])
def test_a_part_is_a_benchmark_and_its_flags_are_understood(form: str, part: SuitePart) -> None:
    assert command.parser(part.name).parse_args(part.command[1:])


def test_the_suite_takes_a_quarter_of_an_hour_and_a_gpu_nine_minutes() -> None:
    assert suite.minutes(FORMS[SHORT]) <= 15 and suite.minutes(FORMS[ON_GPU]) <= suite.MINUTES == 9
    assert {part.name for part in FORMS[SHORT]} <= {part.name for part in FORMS[FULL]}
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for what, form in (("this machine", SHORT), ("a GPU", ON_GPU)):
        assert f"the benchmarks of {what}, {suite.minutes(FORMS[form])} minutes" in said


@pytest.mark.slow
def test_a_stage_that_crashes_or_hangs_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(suite, "start", as_told)
    monkeypatch.setattr(suite, "STOPPING_SECONDS", 0.1)
    stages = [SuitePart(name, "", 4 if name == "gpu_law3" else 120) for name in CODES]
    ended = {each.part.name: each for each in suite.run(ON_GPU, stages, tmp_path, options())}
    assert [each.code for each in ended.values()] == [0, -11, OVERRAN, 1, suite.LEFT_OUT, 1]
    assert "begun" in ended["gpu_law3"].said and ended["parity"].how == "died of signal 11"
    told = {row["figures"]["stage"]: row["figures"] for row in rows.read(ON_GPU, tmp_path)}
    assert list(told) == list(CODES)
    assert told["gpu_environment"]["said"] == [] and told["parity"]["said"] == ["before"]
    # What ended by itself on this commit and machine isn't run again.
    again = suite.run(ON_GPU, stages, tmp_path, options("--resume"))
    assert [each.part.name for each in again] == ["parity", "gpu_law3", "gpu_verify"]


def test_a_part_that_is_not_there_is_not_passed_over() -> None:
    assert [part.name for part in suite.chosen(ON_GPU, "gpu_verify,parity")] == ["parity", "gpu_verify"]
    with pytest.raises(SystemExit, match="no part named mush"):
        suite.chosen(SHORT, "mesh,mush")


@pytest.mark.parametrize(("how", "code"), [("break", 2), ("refuse", 2), ("leave", 3), ("miss", 1), ("work", 0)])
def test_a_benchmark_that_breaks_is_told_from_one_that_misses_a_bar(
    how: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Module:
        HELP = "made up"
        flags = staticmethod(lambda parser: None)

        @staticmethod
        def measure(options: object) -> dict[str, object]:
            ends = {"break": ValueError("broken"), "refuse": SystemExit("no"), "leave": LeftOut("not here")}
            if how in ends:
                raise ends[how]
            return {"missed": ["a bar"] if how == "miss" else []}

    monkeypatch.setattr(command, "load", lambda name: Module)
    assert command.main(["mesh", "--no-row"]) == code


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), ValueError("broken")])
def test_a_stage_that_is_stopped_leaves_what_it_had_measured(
    problem: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known: dict[str, float] = {}

    class Module:
        HELP = "made up"
        flags = staticmethod(lambda parser: None)

        @staticmethod
        def measure(options: argparse.Namespace) -> dict[str, object]:
            options.so_far = {"gpu": "Some GPU", "us": known}
            raise problem

    monkeypatch.setattr(command, "load", lambda name: Module)
    with pytest.raises(type(problem)):
        command._measured("mesh", ["--results", str(tmp_path)])
    assert rows.read("mesh", tmp_path) == []
    known["1 row"] = 3.5
    assert command._measured("mesh", ["--results", str(tmp_path)]) == command.FAILED
    [row] = rows.read("mesh", tmp_path)
    assert row["figures"]["us"] == {"1 row": 3.5} and row["figures"]["ended_early"]
    assert type(problem).__name__ in row["figures"]["missed"][0]


def bare(folder: Path) -> dict[str, str]:
    """Every Python that is started with it lacks what carries messages."""
    (folder / "sitecustomize.py").write_text(MISSING)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "TRITON_INTERPRET": "1"}


@pytest.mark.slow
def test_stages_run_where_nothing_carries_messages(tmp_path: Path) -> None:
    stages = [part.name for part in FORMS[ON_GPU]]
    code = f"""
import sys
from bench import __main__ as command
for name in {stages}: command.load(name)
assert command.main(["gpu_prefill", "--dry-run", "--results", sys.argv[1]]) == 0
assert not {{"zmq", "aiohttp"}} & set(sys.modules)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "rows")]
    done = subprocess.run(words, cwd=ROOT, env=bare(tmp_path), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    [row] = rows.read("gpu_prefill", tmp_path / "rows")
    assert row["figures"]["dry_run"] and "--results" not in row["command"]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the stages run for real")
def test_the_dry_run_runs_every_stage_where_nothing_carries_messages(tmp_path: Path) -> None:
    """Minutes: the interpreter is slow."""
    words = [sys.executable, "-m", "bench", ON_GPU, "--dry-run", "--results", str(tmp_path / "rows")]
    done = subprocess.run(words, cwd=ROOT, env=bare(tmp_path), capture_output=True, text=True)
    how: dict[str, Any] = {row["figures"]["stage"]: row["figures"] for row in rows.read(ON_GPU, tmp_path / "rows")}
    assert {name: each["code"] for name, each in how.items()} == {
        part.name: suite.LEFT_OUT if part.name == "gpu_http" else 0 for part in FORMS[ON_GPU]
    }, done.stdout
    for name in how.keys() - {"gpu_http"}:
        [row] = rows.read(name, tmp_path / "rows")
        # A toy has few sizes, and a table may be of others.
        assert any(lines_of(shown, row["figures"]) for shown in command.load(name).SHOWN), name
