"""The mesh of a program ends with it, however that ends, and belongs to it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.running_mesh import descendants
from specmesh import LLM, SamplingParams

from .conftest import MOCK

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = f"""
import sys, time
from specmesh import LLM
llm = LLM(**{MOCK!r})
print(llm._mesh._process.pid, llm._mesh.folder, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def program() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.mark.parametrize("how", [pytest.param("ends", marks=pytest.mark.slow), "killed"])
def test_no_process_and_no_file_is_left(program: subprocess.Popen[str], how: str) -> None:
    assert program.stdout is not None and program.stdin is not None
    told = program.stdout.readline().split()
    supervisor, folder = int(told[0]), Path(told[1])
    pids = [supervisor, *descendants(supervisor)]
    assert len(pids) >= 5 and folder.is_dir()
    if how == "ends":
        program.stdin.close()
        assert program.wait(60) == 0 and not folder.exists()
    else:
        program.send_signal(signal.SIGKILL)
        program.wait()
    assert gone(pids, 20), "the pipe is closed with the program"


def test_a_forked_child_neither_uses_nor_ends_it() -> None:
    llm, greedy = LLM(**MOCK), SamplingParams(temperature=0)
    before = llm.generate([[100, 101]], greedy)[0].outputs[0].token_ids
    child = os.fork()
    if not child:
        try:
            llm.generate([[100, 101]])
        except RuntimeError as error:
            llm.close()
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert llm.generate([[100, 101]], greedy)[0].outputs[0].token_ids == before
    llm.close()
    llm.close()
    assert llm._mesh is not None and not alive(llm._mesh._process.pid)
