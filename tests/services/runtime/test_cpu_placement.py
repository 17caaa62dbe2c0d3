"""Cores and niceness of a role's process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.api.cores import cores_of
from services.runtime.cpu_placement import GPUS, shared_cores, shared_devices, threads_of


def test_threads_are_one_a_core_that_the_role_may_use() -> None:
    mine = sorted(os.sched_getaffinity(0))
    assert threads_of("worker", "", 0) == len(mine)
    assert threads_of("worker", f"worker={mine[0]}", 0) == 1
    assert threads_of("worker", f"worker={mine[0]}", 3) == 3


def in_a_process(role: str, cores: str, niceness: int, told: str = "", session: bool = False) -> str:
    program = (
        "import os; from services.runtime.cpu_placement import take_place; "
        f"take_place({role!r}, {cores!r}, {niceness}); "
        f"print({told or 'sorted(os.sched_getaffinity(0)), os.nice(0)'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, start_new_session=session)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_process_takes_its_place() -> None:
    core, nice = min(os.sched_getaffinity(0)), os.nice(0)
    assert in_a_process("streamer", f"streamer={core}", 3) == f"[{core}] {min(nice + 3, 19)}"
    assert in_a_process("worker", f"worker={core}", 3) == f"[{core}] {nice}"


def test_cores_that_are_not_there_end_the_process_with_words() -> None:
    said = in_a_process("worker", "worker=4000", 0)
    assert "cores: worker can't run on [4000]" in said and "; there are cores " in said


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="cores aren't shared out by session here")
def test_a_process_with_a_session_of_its_own_sets_that_back_and_nobody_elses() -> None:
    before = Path("/proc/self/autogroup").read_text()
    # Empty where the session it was started in shares nothing out (that of init, say).
    told = "repr(open('/proc/self/autogroup').read().strip())"
    assert in_a_process("tokenizer", "", 7, told, session=True).endswith("nice 7'")
    assert not in_a_process("worker", "", 7, told, session=True).endswith("nice 7'")
    in_a_process("tokenizer", "", 7, told)
    assert Path("/proc/self/autogroup").read_text() == before


# Several workers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("workers", [2, 3, 5, 16])
def test_workers_share_the_cores_equally_and_leave_none(cores: int, workers: int) -> None:
    parts = [cores_of("worker", shared_cores("", number, workers, range(cores))) for number in range(workers)]
    assert set().union(*parts) == set(range(cores))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    if workers <= cores:
        assert sum(sizes) == cores


def test_workers_share_what_the_setting_gives_them_and_others_keep_theirs() -> None:
    setting = "worker=2-5; streamer=0,1"
    assert cores_of("worker", shared_cores(setting, 1, 2, range(8))) == {4, 5}
    assert cores_of("streamer", shared_cores(setting, 1, 2, range(8))) == {0, 1}


def test_each_worker_has_gpus_of_its_own(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia2"):
        (tmp_path / name).touch()
    assert [shared_devices({}, number, 2, tmp_path)[GPUS] for number in (0, 1)] == ["0,2", "1,10"]
    assert [shared_devices({GPUS: "7, 5"}, number, 3, tmp_path)[GPUS] for number in (0, 1, 2)] == ["7", "5", "7"]


def test_a_machine_without_gpus_says_nothing_of_them(tmp_path: Path) -> None:
    assert shared_devices({}, 0, 2, tmp_path) == {}
    assert shared_devices({GPUS: ""}, 0, 2, tmp_path) == {}
