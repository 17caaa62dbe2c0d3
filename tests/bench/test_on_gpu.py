"""The stages of a GPU's machine: each ends alone and leaves what it found. The dry run runs all of them in Triton's
interpreter, in processes that have nothing that carries messages."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from bench import __main__ as command
from bench import forms, on_gpu, rows
from bench.forms import FORMS, ON_GPU, Part
from bench.left_out import LeftOut
from bench.suite import OVERRAN

# A machine with a GPU may have torch, triton and numba, and nothing of what carries messages.
MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"zmq", "msgspec", "msgpack", "orjson", "aiohttp", "uvloop", "prometheus_client"}:
            raise ModuleNotFoundError(f"no module named {name}", name=name)

sys.meta_path.insert(0, Missing())
"""


def ending(code: str) -> on_gpu.Begin:
    def begin(_: Sequence[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip

    return begin


def options(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**({"resume": False, "minutes": 9.0, "dry_run": False} | changes))


CODES = {
    "gpu_environment": "print('all is well')",
    "parity": "import os, signal; print('before'); os.kill(os.getpid(), signal.SIGSEGV)",
    "gpu_law3": "import time; print('begun', flush=True); time.sleep(600)",
    "gpu_steps": "raise SystemExit(1)",
    "gpu_verify": f"raise SystemExit({on_gpu.LEFT_OUT})",
    "gpu_decode": "raise ValueError('broken')",
}


def begin_as_told(command: Sequence[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    return ending(CODES[command[0]])(command, said)


def test_a_stage_that_crashes_or_hangs_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(on_gpu, "start", begin_as_told)
    monkeypatch.setattr(on_gpu, "STOPPING_SECONDS", 0.1)
    stages = [Part(name, "", 4 if name == "gpu_law3" else 120) for name in CODES]
    ended = {each.part.name: each for each in on_gpu.run(stages, tmp_path, options())}
    assert {name: each.code for name, each in ended.items()} == {
        "gpu_environment": 0, "parity": -11, "gpu_law3": OVERRAN, "gpu_steps": 1, "gpu_verify": 3, "gpu_decode": 1,
    }  # fmt: skip
    assert ended["gpu_law3"].how == "was stopped: it took too long" and "begun" in ended["gpu_law3"].said
    assert ended["parity"].how == "died of signal 11" and ended["gpu_verify"].how == "left out"
    told = {row["figures"]["stage"]: row["figures"] for row in rows.read(on_gpu.NAME, tmp_path)}
    assert list(told) == list(CODES)
    assert told["gpu_environment"]["said"] == [] and told["parity"]["said"] == ["before"]


def test_what_ended_before_is_not_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(on_gpu, "start", begin_as_told)
    stages = [Part(name, "", 120) for name in ("gpu_environment", "parity", "gpu_steps", "gpu_verify")]
    on_gpu.run(stages, tmp_path, options())
    again = on_gpu.run(stages, tmp_path, options(resume=True))
    assert [each.part.name for each in again] == ["parity", "gpu_verify"]
    monkeypatch.setattr(rows, "commit", lambda: "another")
    assert len(on_gpu.run(stages, tmp_path, options(resume=True))) == 4


def test_all_stages_end_within_the_time_of_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(on_gpu, "start", lambda *_: pytest.fail("something ran"))
    [ended] = on_gpu.run([Part("gpu_steps", "", 40)], tmp_path, options(minutes=0.05))
    assert (ended.code, ended.said) == (on_gpu.LEFT_OUT, "there is no time left")
    assert sum(part.seconds for part in FORMS[ON_GPU]) <= on_gpu.MINUTES * 60 == 9 * 60


def test_stages_can_be_chosen_and_one_that_is_not_there_is_not_passed_over() -> None:
    chosen = on_gpu.chosen(argparse.Namespace(only="gpu_verify,parity"))
    assert [part.name for part in chosen] == ["parity", "gpu_verify"]
    with pytest.raises(SystemExit, match="no stage named nothing"):
        on_gpu.chosen(argparse.Namespace(only="nothing"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_gpu, "start", lambda *_: pytest.fail("something ran"))
    assert command.main([ON_GPU]) == 2
    assert "torch sees no GPU" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        command.load("gpu_steps").measure(argparse.Namespace(dry_run=False, turns=1))


def test_a_stage_that_cannot_run_here_says_why_and_did_not_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def left_out(_: object) -> None:
        raise LeftOut("there is no model here")

    monkeypatch.setattr(command.load("gpu_http"), "measure", left_out)
    assert command.main(["gpu_http", "--no-row"]) == on_gpu.LEFT_OUT
    assert "there is no model here" in capsys.readouterr().err


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every Python that is started here lacks what carries messages."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(MISSING)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path / "site"), inherited])))
    return tmp_path


def hanging_and_crashing(argv: Sequence[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    """Two more stages than there are."""
    stood_in = {"crash": "import os; os.abort()", "hang": "import time; time.sleep(3600)"}
    return ending(stood_in[argv[0]])(argv, said) if argv[0] in stood_in else START_DRY(argv, said)


START_DRY = on_gpu.start_dry


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the stages run for real")
def test_the_dry_run_runs_every_stage_where_nothing_carries_messages(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one that crashes and one that hangs among them. Minutes: the interpreter is slow."""
    stages = [*FORMS[ON_GPU]]
    stages = [*stages[:2], Part("crash", "", 60), *stages[2:5], Part("hang", "", 3), *stages[5:]]
    monkeypatch.setitem(forms.FORMS, ON_GPU, tuple(stages))
    monkeypatch.setattr(on_gpu, "start_dry", hanging_and_crashing)
    folder = bare / "rows"
    assert command.main([ON_GPU, "--dry-run", "--results", str(folder)]) == 1
    said = capsys.readouterr().out
    how = {row["figures"]["stage"]: row["figures"] for row in rows.read(on_gpu.NAME, folder)}
    assert {name for name, each in how.items() if each["code"] == 0} == {
        part.name for part in stages if part.name not in ("crash", "hang", "gpu_http")
    }, said  # fmt: skip
    assert how["crash"]["how"] == "died of signal 6" and how["hang"]["code"] == OVERRAN
    assert how["gpu_http"]["how"] == "left out" and "toy" in how["gpu_http"]["said"][-1]
    for name in ("gpu_environment", "gpu_law3", "gpu_steps", "gpu_verify", "gpu_decode", "gpu_runner"):
        [row] = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        assert row["figures"]["dry_run"] and row["figures"]["missed"] == []


# In one process: most of what each alone would take is importing torch.
ONE_BY_ONE = """
import sys
import services.worker.running.torch_runner, services.worker.loading, bench.gpu.in_process
from bench import __main__ as command

for name in sys.argv[2:]:
    assert command.main([name, "--dry-run", "--results", sys.argv[1]]) == 0, name
assert "zmq" not in sys.modules
"""


@pytest.mark.parametrize(
    "names", [["gpu_attention", "gpu_prefill"], pytest.param(["gpu_verify"], marks=pytest.mark.slow)], ids="+".join
)
def test_stages_and_the_runner_run_where_nothing_carries_messages(names: list[str], bare: Path) -> None:
    words = [sys.executable, "-c", ONE_BY_ONE, str(bare / "rows"), *names]
    done = subprocess.run(words, cwd=rows.ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for name in names:
        [row] = rows.read(name, bare / "rows")
        assert row["figures"]["dry_run"] and "--results" not in row["command"]
